"""What an image costs under several rows, measured in turns so that whatever else the machine does hits all alike."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rose_jax.study.bench import Arm, Bench

ROUNDS = 5
MOST_IMAGES = 1024


class Cost(NamedTuple):
    total: list[float]  # ms per image, one number per round: forward passes, evolution, classification
    stream: list[float]  # of that, evolution and classification
    ratio: list[float]  # total, to that of the first arm in the same round


def measure(bench: Bench, arms: Mapping[str, Arm], rounds: int = ROUNDS) -> dict[str, Cost]:
    """Arms (method, options) on a piece of the last stage's stream; a round before the first compiles everything."""
    last = bench.stages - 1
    before = bench.follow("rose").outcomes[last - 1]
    stream = bench.own_streams[last][:MOST_IMAGES]
    costs: dict[str, Cost] = {name: Cost([], [], []) for name in arms}
    for turn in range(rounds + 1):
        totals = {}
        for name, (method, options) in arms.items():
            scorer = bench.scorer(method, **options)
            bench.seed(scorer, 0)
            scorer.restart(after=before)
            view = bench.trajectory.view(last, stream)  # not the bank's: its passes are timed here
            seconds = scorer.score(view).seconds
            forward = scorer.forward_seconds(view)
            totals[name] = 1e3 * seconds / len(stream)
            if turn:
                costs[name].total.append(totals[name])
                costs[name].stream.append(1e3 * (seconds - forward) / len(stream))
                costs[name].ratio.append(totals[name] / totals[next(iter(arms))])
        bench.tick(0.0)
    return costs


def median(values: list[float]) -> float:
    return float(np.median(values))
