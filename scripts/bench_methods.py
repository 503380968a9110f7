"""What each row costs: a training step, the end of a task, memory held between tasks, a test image.

    python scripts/bench_methods.py [--config configs/digits_cold5.py] [--methods lwf,sdc,...] [--steps 10]

Steps and images are timed in the second task, when there is a teacher, without compilation. Nothing is learnt:
the first task is left as it was initialised. Costs are relative to `lwf` (training) and to plain NCM (test).
"""

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rose_jax.config import Config
from rose_jax.data import augment
from rose_jax.data.pipeline import Pipeline
from rose_jax.experiment import make_pipeline
from rose_jax.methods import METHODS, Row, resolve
from rose_jax.run.scoring import Scorer
from rose_jax.run.stage import Stage
from rose_jax.runtime.sharding import Layout
from rose_jax.train.loop import make_task
from rose_jax.train.objectives import make_objective
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import Objective, Snapshot

MEGABYTE = 2**20


class Training(NamedTuple):
    """What an objective costs, whatever is scored on top."""

    stages: list[Stage]  # the first two; rows share them, and with them the forward passes' time
    pipeline: Pipeline
    step_seconds: float  # median of a training step
    finish_seconds: float

    @property
    def image_seconds(self) -> float:
        """Per image of the batch as it is fed."""
        return self.step_seconds / self.pipeline.config.train.batch_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/digits_cold5.py", help="FILE[:PRESET]")
    parser.add_argument("--methods", default=",".join([*METHODS, "lwf+rose"]))
    parser.add_argument("--steps", type=int, default=10, help="training steps to time")
    parser.add_argument("--images", type=int, default=512, help="test images to time")
    arguments = parser.parse_args()
    rows = resolve(["lwf", "lwf_ncm", *arguments.methods.split(",")])
    config = load_config(arguments.config)
    pipeline = make_pipeline(config, Layout())
    training: dict[str, Training] = {}
    costs = {}
    for name, row in rows.items():
        if row.objective not in training:
            training[row.objective] = train(row.objective, pipeline, arguments.steps, arguments.images)
        costs[name] = measure(name, row, training[row.objective])
    print(table(costs, training, rows, config))


def load_config(spec: str) -> Config:
    path, _, preset = spec.partition(":")
    module_spec = importlib.util.spec_from_file_location("bench_config", path)
    if module_spec is None or module_spec.loader is None or not Path(path).exists():
        raise SystemExit(f"There is no config file {path}.")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    config = module.get_config(preset)
    config.data.synthetic_if_missing = True  # costs do not depend on what is in the images
    return config


def train(name: str, pipeline: Pipeline, steps: int, images: int) -> Training:
    config = pipeline.config
    objective: Objective = make_objective(
        name,
        config=config,
        encoder=pipeline.encoder,
        num_classes=pipeline.scenario.num_classes,
        image_shape=pipeline.image_shape,
        transform=augment.train_transform(
            config.data.augment, normalisation=config.data.normalisation, pad=config.data.pad
        ),
    )
    pipeline = pipeline.with_schedule(objective.train)
    begin, step = make_begin(objective, config.seed), make_step(objective, pipeline.layout, config.seed)
    snapshots: list[Snapshot] = []
    stages: list[Stage] = []
    prev, finish_seconds = None, 0.0
    seconds: list[float] = []
    for index in range(2):
        task = make_task(pipeline, index)
        state = pipeline.layout.replicate(begin(prev, task))
        if index:
            for feed, _ in pipeline.feeds(index, 0, steps + 1, lambda epoch: 1e-4):
                begun = time.perf_counter()
                state, _ = jax.block_until_ready(step(state, prev, pipeline.resident("train"), feed, task))
                seconds.append(time.perf_counter() - begun)
        stream = pipeline.scenario.stream_indices(pipeline.labels["test"], index, config.seed)[:images]
        view = Stage(pipeline, index, snapshots, stream)
        begun = time.perf_counter()
        snapshot = objective.finish(state.trainable, state.batch_stats, prev, view, task)
        finish_seconds = time.perf_counter() - begun
        prev = pipeline.layout.replicate(snapshot)
        snapshots.append(prev)
        stages.append(view)
    step_seconds = float(np.median(seconds[1:]))  # the first compiles
    return Training(stages, pipeline, step_seconds, finish_seconds)


def measure(name: str, row: Row, training: Training) -> dict[str, float]:
    """Seconds of compensation, milliseconds per test image, and bytes that the next task needs."""
    scorer = Scorer(name, row, training.pipeline.config, training.pipeline.layout, None)
    left, last = training.stages[1].snapshots[1], training.stages[1]
    forward = last.test_seconds(1)  # extracted now, and shared by all rows, so that no row pays for it
    if scorer.moving.evolves:
        forward += last.test_seconds(0)
    for _ in range(2):  # the first time compiles
        scorer.restart()
        scorer.score(training.stages[0])
        begun = time.perf_counter()
        outcome = scorer.score(last)
        elapsed = time.perf_counter() - begun
    # A head needs no prototypes, and an objective that keeps means of its own has them among the rest.
    none = (row.classifier == "head" and row.compensation == "none") or "mean" in left.extra
    return {
        "compensate": elapsed - (outcome.seconds - forward),
        "test": 1e3 * outcome.seconds / len(outcome.predictions),
        "network": megabytes(left.variables) + megabytes(left.head),
        "prototypes": 0.0 if none else megabytes(outcome.memory.mean),
        "extra": megabytes(left.extra),
    }


def megabytes(tree: Any) -> float:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree)) / MEGABYTE


def table(costs: dict[str, dict[str, float]], training: dict[str, Training], rows, config: Config) -> str:
    lines = [
        f"{config.name}: width {config.model.width}, {jax.devices()[0].device_kind}",
        f"{'row':12} {'train step':>10} {'per image':>10} {'end of task':>12} {'old net':>9} {'prototypes':>11} "
        f"{'other':>9} {'test':>7} {'ms/image':>9}",
        f"{'':12} {'x lwf':>10} {'x lwf':>10} {'s':>12} {'MB':>9} {'MB':>11} {'MB':>9} {'x NCM':>7} {'':>9}",
    ]
    for name, cost in costs.items():
        own = training[rows[name].objective]
        lines.append(
            f"{name:12} {own.step_seconds / training['lwf'].step_seconds:10.2f} "
            f"{own.image_seconds / training['lwf'].image_seconds:10.2f} "
            f"{own.finish_seconds + cost['compensate']:12.2f} {cost['network']:9.2f} {cost['prototypes']:11.3f} "
            f"{cost['extra']:9.2f} {cost['test'] / costs['lwf_ncm']['test']:7.2f} {cost['test']:9.3f}"
        )
    sizes = ", ".join(f"{name} {t.pipeline.config.train.batch_size}" for name, t in training.items())
    lines.append(
        f"Images of a training step: {sizes}. The end of a task is finish and compensation; old net: with head."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
