"""What each row costs: a training step, the end of a task, memory held between tasks, a test image.

Steps (the objectives' in turns) and images are timed in the second task, when there is a teacher; "training" is all of a run's
steps at that pace, the first task's at the pace of its own or of the objective that trains it for this one, without scoring. Nothing is learnt: the
first task is left nearly as it was initialised. Costs are relative to `lwf` (training) and to plain NCM, `lwf_ncm` (test). The
end of a task is the objective's finish and the compensation, "old network" has its head, "other" is what else the
objective and the classifier keep.
"""

import argparse
import runpy
from typing import Any

import jax
import numpy as np

from rose_jax.config import Config
from rose_jax.data.pipeline import TrainingBatches
from rose_jax.experiment import make_features
from rose_jax.methods import METHODS, Row, resolve
from rose_jax.run.features import Features
from rose_jax.run.scoring import Scorer
from rose_jax.run.stage import Stage
from rose_jax.runtime.sharding import Layout
from rose_jax.train.loop import make_task, total_steps
from rose_jax.train.objectives import OBJECTIVES, make_objective
from rose_jax.train.schedule import task_schedule
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import Snapshot

from .shared import Report, in_turns, ratio, timed


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default="configs/digits_cold5.py", help="FILE[:PRESET] (digits_cold5)")
    parser.add_argument(
        "--methods",
        default=",".join([*METHODS, "lwf+rose", "lwf+rose_ridge"]),
        help="beside lwf and lwf_ncm (all)",
    )
    parser.add_argument("--images", type=int, default=512, help="test images (512)")


def run(options: argparse.Namespace, report: Report) -> None:
    rows = resolve(["lwf", "lwf_ncm", *options.methods.split(",")])
    config = load_config(options.config)
    features = make_features(config, Layout())
    objectives = dict.fromkeys(row.objective for row in rows.values())
    trainings = {name: Training(name, features, options.images) for name in objectives}
    seconds = in_turns({name: training.step for name, training in trainings.items()}, options.rounds)
    for training in trainings.values():
        training.end_task()
    table = {}
    for name, row in rows.items():
        training = trainings[row.objective]
        step = ratio(seconds[row.objective], seconds["lwf"]).median if training.learns else 0.0
        table[name] = {
            "training, min": training.minutes(float(np.median(seconds[row.objective]))),
            "training step, x lwf": step,
            "images of it": training.batch_size,
            "per image, x lwf": step * trainings["lwf"].batch_size / training.batch_size,
            **score(name, row, training),
        }
    for cost in table.values():
        cost["test, x NCM"] = cost["test, ms per image"] / table["lwf_ncm"]["test, ms per image"]
    report.table(f"{config.name}, width {config.model.width}", table)


def load_config(spec: str) -> Config:
    path, _, preset = spec.partition(":")
    config = runpy.run_path(path)["get_config"](preset)
    config.data.synthetic_if_missing = True  # costs do not depend on what is in the images
    return config


# Below: all that the benchmark knows of how tasks are trained and rows scored.


class Training:
    """The first two tasks of an objective; it is made at the start of the second."""

    def __init__(self, name: str, features: Features, images: int):
        parts = features.parts
        self.features, self.images = features, images
        self.objective = make_objective(name, parts)
        self.options = self.objective.train or parts.config.train
        self.batch_size = self.options.batch_size
        self.learns = task_schedule(self.options, 1).epochs > 0  # a frozen encoder has no second task's steps
        self.stages: list[Stage] = []  # rows share them, and with them the forward passes' time
        self.snapshots: list[Any] = []
        self._begin = make_begin(self.objective)
        self._step = make_step(self.objective, features.images.layout)
        rates = np.full(self.options.steps_per_call, 1e-4, np.float32)
        self._lr = features.images.layout.replicate(rates)
        self.batches = TrainingBatches(features.images, self.options)
        source = OBJECTIVES[name].first_from
        if source and self.objective.adopt is not None:
            first = Training(source, features, images)
            self.first_minutes = first.first_minutes
            self._enter_stage()
            self._keep(self.objective.adopt(first.snapshots[0]))
        else:
            self._begin_task(0)
            self.first_minutes = self._minutes(0, float(np.median(in_turns({"": self.step}, 3)[""])))
            self.end_task()
        self._begin_task(1)

    def _begin_task(self, index: int) -> None:
        images = self.features.images
        self.previous = self.snapshots[-1] if index else None
        self.task = make_task(images, task_schedule(self.options, index).weight_decay, index)
        self.state = images.layout.replicate(self._begin(self.previous, self.task))
        self._feed, _ = next(self.batches.feeds(index, 0, 1))  # always the same one

    def minutes(self, later_seconds: float) -> float:
        """Of all steps, where a call in later tasks takes so long."""
        later = range(1, self.features.images.scenario.num_tasks)
        return self.first_minutes + sum(self._minutes(task, later_seconds) for task in later)

    def _minutes(self, task: int, seconds: float) -> float:
        return total_steps(self.batches, task) / self.options.steps_per_call * seconds / 60

    def step(self):
        data = self.features.images.resident("train")
        self.state, _ = self._step(self.state, self.previous, data, self._feed, self._lr, self.task)
        return self.state

    def end_task(self) -> None:
        stage = self._enter_stage()
        trained = self.state.trainable, self.state.kept, self.previous
        snapshot, self.end_seconds = timed(self.objective.finish, *trained, stage, self.task)
        self._keep(snapshot)

    def _enter_stage(self) -> Stage:
        index = len(self.stages)
        stream = self.features.images.stream(index)[: self.images]
        self.stages.append(Stage(self.features, index, self.snapshots, stream, self.batch_size))
        return self.stages[-1]

    def _keep(self, snapshot: Snapshot) -> None:
        self.snapshots.append(self.features.images.layout.replicate(snapshot))


def score(name: str, row: Row, training: Training) -> dict[str, float]:
    features = training.features
    scorer = Scorer(name, row, features.parts, features.images.layout, None)
    first, last = training.stages
    forward = scorer.forward_seconds(last)  # extracted now, and shared by all rows, so that no row pays for it
    for _ in range(2):  # the first time compiles
        scorer.restart()
        scorer.score(first)
        outcome, seconds = timed(scorer.score, last)
    left = training.snapshots[1]
    # A head needs no prototypes, and an objective that keeps means of its own has them among the rest.
    none = (row.classifier == "head" and row.compensation == "none") or "mean" in left.extra
    return {
        "end of a task, s": training.end_seconds + seconds - (outcome.seconds - forward),
        "old network, MB": megabytes((left.variables, left.head)),
        "prototypes, MB": 0.0 if none else megabytes(outcome.memory.mean),
        # A head is counted with its network.
        "other, MB": megabytes((left.extra, {} if row.classifier == "head" else outcome.params)),
        "test, ms per image": 1e3 * outcome.seconds / len(outcome.predictions),
    }


def megabytes(tree: Any) -> float:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree)) / 2**20
