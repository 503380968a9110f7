"""What a test image costs: with gd and rose against no evolution, with methods that adapt the network, and with rose that
evolves on every k-th image only."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rose_jax.methods import METHODS
from rose_jax.report import paper
from rose_jax.report.runs import Score
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Arm, Bench
from rose_jax.study.subject import Finding, Subject

GRANULARITIES = (1, 16, 128)
EVERY = (1, 2, 4, 8, 16)
ROUNDS = 5
MOST_IMAGES = 1024
NONE: dict[str, Arm] = {"none": ("base", {})}  # the arm to which the others are compared
ADAPTING = ("batch_norm", "tent", "eata", "cotta", "ttt", "ttt++")  # those whose encoders the run has


class Cost(NamedTuple):
    """One number per round."""

    total: list[float]  # ms per image: forward passes, evolution, classification
    stream: list[float]  # of that, evolution and classification
    ratio: list[float]  # total, to that of the first arm in the same round
    old: list[float]  # the share of the images that passed the old encoder, counted
    forwards: list[float]  # passes per image, counted
    backwards: list[float]

    def medians(self) -> tuple[str, str, str]:
        total, stream, ratio = (float(np.median(values)) for values in self[:3])
        return f"{total:.3f}", f"{stream:.3f}", f"{ratio:.2f}"


def inference_time(subject: Subject) -> Finding:
    """Milliseconds per test image, for several numbers of images per update and for methods that read images."""
    bench, rounds = subject.bench(), subject.draws or ROUNDS
    batch = bench.config.test.batch_size
    grains = [g for g in GRANULARITIES if batch % g == 0]
    evolving = {f"{m}, {g} per update": (m, {"granularity": g}) for m in ("gd", "rose") for g in grains}
    arms: dict[str, Arm] = NONE | evolving
    subject.expect(1)
    costs = measure(bench, arms, rounds)
    for objective, names in _by_encoders(subject, ADAPTING).items():
        own: dict[str, Arm] = {name: (name, {}) for name in names}
        costs |= {
            name: cost
            for name, cost in measure(subject.bench(objective), NONE | own, rounds).items()
            if name in own
        }
        arms |= own
    found = {name: cost.medians() for name, cost in costs.items()}
    paper_base = paper.inference_ms("base") or float("nan")
    rows, bars = [], []
    for name, (method, options) in arms.items():
        grain = options.get("granularity", 1)
        ms = paper.inference_ms(method) if grain == 1 else None
        total, stream, ratio = found[name]
        passes = (f"{costs[name].forwards[-1]:.0f}", f"{costs[name].backwards[-1]:.0f}")
        printed = (f"{ms:.1f}", f"{ms / paper_base:.2f}x") if ms else ("-", "-")
        rows.append((name, total, "-" if method in ADAPTING else stream, f"{ratio}x", *passes, *printed))
        variant = grains.index(grain) if options else 0
        bars.append(tell.series(method, name, [[float(np.median(costs[name].total))]], variant=variant))
    notes = (
        f"Medians of {rounds} rounds in which all rows take turns; forward passes in batches of {batch} on this "
        "machine, one of the old encoder more for rows that evolve. The paper's are of one GPU.",
        f"Forwards and backwards: passes per image. Methods that adapt the network see {bench.config.testtime.batch_size} "
        "images at once; what they measure on the task before the stream is not in their time.",
    )
    header = ("", "ms/image", "of that, evolving", "of none", "forwards", "backwards", "paper ms", "paper of none")
    figure = {"kind": "rows", "x": "ms per test image, forward passes included", "series": bars}
    (gd_stream, gd_ratio), (stream, ratio) = (found[f"{m}, {grains[0]} per update"][1:] for m in ("gd", "rose"))
    says = (
        f"An image costs {found['none'][0]} ms without evolution, {gd_ratio} times that with gd and {ratio} times with "
        f"RoSE; the evolution alone takes {gd_stream} ms with gd and {stream} ms with RoSE."
    )
    numbers = {name: cost._asdict() for name, cost in costs.items()}
    return Finding(says, Table(header, tuple(rows), notes), figure, numbers, {"rounds": rounds})


def budget(subject: Subject) -> Finding:
    """Evolving on every k-th image only: accuracy of all images, and cost against no evolution."""
    bench, rounds = subject.bench(), subject.draws or ROUNDS
    subject.expect(len(EVERY) + 1)
    stages = {k: bench.per_stage(bench.follow("rose", evolve_every=k)) for k in EVERY}
    costs = measure(bench, NONE | {str(k): ("rose", {"evolve_every": k}) for k in EVERY}, rounds)
    ratios = {k: costs[str(k)].medians()[2] for k in EVERY}
    base = subject.run.scores.get("base") or Score("base")
    rows = [
        (str(k), tell.cell(s[-1]), tell.cell(tell.average(s)), f"{costs[str(k)].old[-1]:.3f}", f"{ratios[k]}x")
        for k, s in stages.items()
    ]
    rows.append(("no evolution (base)", tell.cell(base.last), tell.cell(base.average), "0.000", "1.00x"))
    notes = (f"Cost: ms per image, to that of no evolution; medians of {rounds} rounds in which all take turns.",)
    rose = tell.series("rose", "rose", [[s[-1]] for s in stages.values()], EVERY)
    still = tell.series("base", "base", [[base.last]] * len(EVERY), EVERY)
    figure = tell.log_lines("k: every k-th image passes the old encoder and the queue", [rose, still])
    top = EVERY[-1]
    says = (
        f"On every {top}th image RoSE ends at {stages[top][-1]:.2f} instead of {stages[1][-1]:.2f} and costs "
        f"{ratios[top]} instead of {ratios[1]} times no evolution."
    )
    table = Table(
        ("evolves on every k-th image", "last", "average", "old encoder sees", "cost"), tuple(rows), notes
    )
    numbers = {"per_stage": stages, "cost": {name: cost._asdict() for name, cost in costs.items()}}
    return Finding(says, table, figure, numbers, {"every": list(EVERY), "rounds": rounds})


def measure(bench: Bench, arms: Mapping[str, Arm], rounds: int) -> dict[str, Cost]:
    """Arms (method, options) on a piece of the last stage's stream, in turns so that whatever else the machine does hits
    all alike; a round before the first compiles everything."""
    last = bench.stages - 1
    before = bench.follow("rose").outcomes[last - 1]
    stream = bench.own_streams[last]
    costs: dict[str, Cost] = {name: Cost([], [], [], [], [], []) for name in arms}
    for turn in range(rounds + 1):
        totals = []
        for name, (method, options) in arms.items():
            scorer = bench.scorer(method, **options)
            bench.seed(scorer, 0)
            scorer.restart(after=before)
            piece = stream[: whole_batches(scorer.batch_size(last), len(stream))]
            view = bench.trajectory.view(last, piece)  # not the bank's: its passes are timed here
            outcome = scorer.score(view)
            seconds = outcome.seconds
            totals.append(1e3 * seconds / len(piece))
            if turn:
                costs[name].total.append(totals[-1])
                costs[name].stream.append(1e3 * (seconds - scorer.forward_seconds(view)) / len(piece))
                costs[name].ratio.append(totals[-1] / totals[0])
                costs[name].old.append(view.passes[last - 1] / len(piece))
                forwards, backwards = scorer.passes_per_image(outcome, last)
                costs[name].forwards.append(forwards)
                costs[name].backwards.append(backwards)
        bench.tick(0.0)
    return costs


def whole_batches(batch: int, images: int) -> int:
    """How many images to time, so that no batch is partly padding, which costs as much and counts for nothing."""
    most = min(images, MOST_IMAGES)
    return most // batch * batch or most


def _by_encoders(subject: Subject, names: Sequence[str]) -> dict[str, list[str]]:
    """Rows by the objective that they stand on, without those that the run has not trained."""
    found: dict[str, list[str]] = {}
    for name in names:
        if METHODS[name].objective in subject.objectives():
            found.setdefault(METHODS[name].objective, []).append(name)
    return found
