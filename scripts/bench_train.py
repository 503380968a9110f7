"""What the host and the checkpoints cost an epoch, each as the median ratio of interleaved pairs.

    python scripts/bench_train.py            CIFAR-100's shape, width 16, batch 128: epochs of 39 steps

1. overhead: an epoch through the training loop (feeds, log, progress) over its steps alone, inputs ready.
2. checkpoint: an epoch with one asynchronous checkpoint halfway, waited for at the end, over one without.

The first task is timed: without a teacher its steps are the shortest, so whatever is not a step weighs most. The
machine should do nothing else. Exit code 1 if a limit is not met.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from rose_jax.config import Config
from rose_jax.data import augment, sources
from rose_jax.data.pipeline import Pipeline
from rose_jax.data.scenario import make_scenario
from rose_jax.models.resnet import resnet18
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir
from rose_jax.train.loop import make_task, train_steps
from rose_jax.train.objectives import make_objective

CLASSES, TASKS = 100, 10
LIMITS = {"overhead": ("looped", "bare", 1.05), "checkpoint": ("checkpointed", "looped", 1.02)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=39, help="of an epoch; CIFAR-100 in ten tasks has 39")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(options, Path(folder))
    bare = statistics.median(times["bare"])
    print(f"an epoch of {options.steps} bare steps: {bare:.2f} s, {1000 * bare / options.steps:.1f} ms a step")
    figures: dict[str, float] = {"bare step, seconds": bare / options.steps}
    met = True
    for name, (one, other, limit) in LIMITS.items():
        ratios = [a / b for a, b in zip(times[one], times[other], strict=True)]
        low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        met &= bool(median <= limit)
        print(
            f"{name:10s} {one} / {other}: median {median:.4f} of {len(ratios)} pairs (quartiles {low:.4f} to "
            f"{high:.4f}), limit {limit}: {'met' if median <= limit else 'NOT met'}"
        )
        figures[name] = float(median)
    if options.json:
        Path(options.json).write_text(json.dumps(figures | {"times": times}, indent=1) + "\n")
    return 0 if met else 1


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Seconds of an epoch: bare, through the loop, and with a checkpoint. Round by round, in turning order."""
    config = Config(name="bench")
    config.data.dataset, config.scenario.tasks = "cifar100", TASKS
    config.model.width, config.train.batch_size = options.width, options.batch_size
    config.train.first.epochs = 1
    layout, encoder = Layout(), resnet18(options.width)
    dataset = noise(-(-options.steps * options.batch_size * TASKS // CLASSES))
    pipeline = Pipeline(config, dataset, make_scenario(config.scenario, CLASSES), encoder, layout)
    steps = pipeline.steps_per_epoch(0)
    assert steps == options.steps, "images of a task"
    transform = augment.train_transform("standard", normalisation="cifar100", pad=4)
    objective = make_objective(
        "base", config=config, encoder=encoder, num_classes=CLASSES, image_shape=(32, 32, 3), transform=transform
    )
    with Workdir(folder, config) as work:
        trajectory = Trajectory("bench", objective, pipeline, work)
        task, data = make_task(pipeline, 0), pipeline.resident("train")
        feeds = [feed for feed, _ in pipeline.feeds(0, 0, steps, lambda epoch: 0.01)]

        def bare(state):
            for feed in feeds:
                state, _ = trajectory.step(state, None, data, feed, task)
            return state

        def looped(state, checkpoint_every=2 * steps):
            after = trajectory.after_call(0, 0, checkpoint_every, last=2 * steps)
            work.progress.task(0, TASKS, steps)
            return train_steps(
                trajectory.step, state, None, pipeline, 0, log=work.logger("bench"), after_call=after
            )

        def checkpointed(state):
            return looped(state, steps // 2 + 1)

        def seconds(epoch: Callable) -> float:
            state = jax.block_until_ready(layout.replicate(trajectory.begin(None, task)))
            start = time.perf_counter()
            jax.block_until_ready(epoch(state))
            trajectory.checkpoints.wait()
            return time.perf_counter() - start

        kinds = [bare, looped, checkpointed]
        times: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
        seconds(bare)  # compiles
        seconds(checkpointed)  # and what the first checkpoint brings with it
        for turn in range(options.pairs):
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                times[kind.__name__].append(seconds(kind))
        trajectory.close()
    return times


def noise(per_class: int) -> sources.Dataset:
    """As many images as are asked for in CIFAR's shape; what they show takes no time."""
    rng = np.random.default_rng(0)

    def split(count: int) -> sources.ArraySplit:
        labels = np.repeat(np.arange(CLASSES, dtype=np.int32), count)
        return sources.ArraySplit(rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), labels)

    names = tuple(str(label) for label in range(CLASSES))
    return sources.Dataset("cifar100", CLASSES, names, 32, split(per_class), split(1), "noise")


if __name__ == "__main__":
    sys.exit(main())
