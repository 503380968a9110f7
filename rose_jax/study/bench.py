"""The bench on which every study works: rows over the stages of a trained trajectory, on features made once.

A pass is what the run itself does after training (Scorer, run_stream), under some variation of the stream or of the
options. Without any it gives the numbers of results.json. Programs are compiled once per row and options.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rose_jax.config import Config
from rose_jax.data.order import generator
from rose_jax.experiment import OpenRun
from rose_jax.methods import METHODS, Row
from rose_jax.run import accuracy as metrics
from rose_jax.run.scoring import Outcome, Scorer
from rose_jax.run.stage import Stage
from rose_jax.study.bank import Bank
from rose_jax.study.tell import average
from rose_jax.testtime import ADAPTATIONS

MOST_BATCHES_PER_CALL = 2  # short streams must not pay for a long padded call

# Options that decide how a stream begins or what is fed to it, not what is compiled.
NOT_COMPILED = ("alpha", "gd_init", "evolve_every")

Keep = np.ndarray | Sequence[np.ndarray] | None  # bool [N], of every stage alike or of each its own
View = Callable[[int, np.ndarray], Stage]  # of a stage and its stream
Arm = tuple[str, dict[str, Any]]  # a method, and what it changes in config.evolution


class Pass(NamedTuple):
    """One row over all stages."""

    streams: list[np.ndarray]  # [n] test images of each stage, in their order
    outcomes: list[Outcome]

    @property
    def last(self) -> Outcome:
        return self.outcomes[-1]


class Bench:
    def __init__(self, run: OpenRun, objective: str, tick: Callable[[float], None]):
        """tick: called after each stage of a pass with the seconds that it took."""
        self.trajectory = run.trajectory(objective)
        self.bank = Bank(self.trajectory, run.work.path / "studies" / "features")
        self.images, self.objective, self.tick = self.trajectory.images, objective, tick
        self.config = copy.deepcopy(self.trajectory.parts.config)
        self.config.test.batches_per_call = min(MOST_BATCHES_PER_CALL, self.config.test.batches_per_call)
        self.scenario, self.labels = self.images.scenario, self.images.labels["test"]
        self.stages, self.dim = self.scenario.num_tasks, self.trajectory.parts.encoder.feature_dim
        self.own_streams = [self.images.stream(stage) for stage in range(self.stages)]
        self._scorers: dict[Any, Scorer] = {}
        self._programs: dict[Any, Scorer] = {}
        self._passes: dict[Any, Pass] = {}

    def images_per_class(self) -> np.ndarray:
        """[C] test images of each class in the last stage's stream."""
        return np.bincount(self.labels[self.own_streams[-1]], minlength=self.scenario.num_classes)

    def scorer(self, method: str | Row = "rose", **options: Any) -> Scorer:
        """A row with some options of config.evolution changed; the same one for the same question."""
        config = copy.deepcopy(self.config)
        for name, value in options.items():
            setattr(config.evolution, name, value)
        row = METHODS[method] if isinstance(method, str) else method
        values = dataclasses.asdict(config.evolution)
        key = (row, *values.items())
        if key not in self._scorers:
            program = (row, *((name, value) for name, value in values.items() if name not in NOT_COMPILED))
            if program not in self._programs:
                self._programs[program] = self.new_scorer(str(method), row, config)
            scorer = self._scorers[key] = copy.copy(self._programs[program])  # shares what is compiled
            scorer.parts = scorer.parts._replace(config=config)
            scorer.moving = ADAPTATIONS[row.test_time].make(scorer.parts)
        return self._scorers[key]

    def new_scorer(self, name: str, row: Row, config: Config, folder: Path | None = None) -> Scorer:
        """A scorer of a row on this bench's trajectory, whatever objective the row itself names."""
        parts = self.trajectory.parts._replace(config=config)
        return Scorer(name, row._replace(objective=self.objective), parts, self.images.layout, folder)

    def streams(self, keep: Keep = None, draw: int = 0) -> list[np.ndarray]:
        """The run's own streams, less the images that `keep` leaves out. Draws from 1 on are shuffled anew."""
        found = []
        for stage, stream in enumerate(self.own_streams):
            if keep is not None:
                mask = keep if isinstance(keep, np.ndarray) else keep[stage]
                stream = stream[mask[stream]]
            found.append(self.generator(draw, stage).permutation(stream) if draw else stream)
        return found

    def follow(self, method: str | Row = "rose", *, keep: Keep = None, draw: int = 0, **options: Any) -> Pass:
        """A pass of a row. Draw 0 has the run's own order and pseudo-features, later draws others."""
        scorer = self.scorer(method, **options)
        if keep is not None:
            return self.go(scorer, self.streams(keep, draw), draw)
        key = (id(scorer), draw)
        if key not in self._passes:
            self._passes[key] = self.go(scorer, self.streams(None, draw), draw)
        else:
            self.tick_all()
        return self._passes[key]

    def go(self, scorer: Scorer, streams: list[np.ndarray], draw: int = 0, view: View | None = None) -> Pass:
        """A scorer over given streams; `view` instead of the bank's."""
        self.seed(scorer, draw)
        scorer.restart()
        outcomes = []
        for stage, stream in enumerate(streams):
            begun = time.perf_counter()
            outcomes.append(scorer.score((view or self.bank.view)(stage, stream)))
            self.tick(time.perf_counter() - begun)
        return Pass(streams, outcomes)

    def seed(self, scorer: Scorer, draw: int) -> None:
        scorer.seed = int(self.generator(draw).integers(2**31)) if draw else self.config.seed

    def generator(self, *address: int) -> np.random.Generator:
        return generator("study", self.config.seed, *address)

    def tick_all(self) -> None:
        """A pass that was made before costs nothing, but it was counted on."""
        for _ in range(self.stages):
            self.tick(0.0)

    # What came out, in per cent.

    def class_accuracy(self, stream: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """[C], NaN for a class without images."""
        return metrics.class_accuracy(self.labels[stream], predictions, self.scenario.num_classes)

    def per_stage(self, done: Pass) -> list[float]:
        """Accuracy on the streamed images after each stage, averaged over classes."""
        pairs = zip(done.streams, done.outcomes, strict=True)
        return [average(self.class_accuracy(stream, outcome.predictions)) for stream, outcome in pairs]
