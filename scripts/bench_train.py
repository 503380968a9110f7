"""What the host and the checkpoints cost: medians of interleaved pairs, as ratios within this run.

    python scripts/bench_train.py            CIFAR-shaped images, width 16, batch 128

1. overhead: steps through the training loop (feeds, log, progress) against the same bare jitted steps.
2. checkpoint: steps with one asynchronous checkpoint against steps without, per epoch of 39 steps.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from rose_jax.config import Config
from rose_jax.data import augment, synthetic
from rose_jax.data.pipeline import Pipeline
from rose_jax.data.scenario import make_scenario
from rose_jax.models.resnet import resnet18
from rose_jax.sharding import Layout
from rose_jax.train.loop import make_task, train_steps
from rose_jax.train.objectives import make_objective
from rose_jax.trajectory import Trajectory
from rose_jax.workdir import Workdir

EPOCH = 39  # steps of an epoch: CIFAR-100, 10 tasks, batch 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8, help="steps of one measurement")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    for name, value in figures.items():
        print(f"{name:34s} {value:.4f}")
    met = figures["loop / bare steps"] <= 1.05 and figures["checkpoint per epoch, fraction"] <= 0.02
    print("limits (1.05 and 0.02):", "met" if met else "NOT met")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


def measure(options, folder: Path) -> dict[str, float]:
    config = Config(name="bench")
    config.data.dataset, config.data.augment = "cifar100", "standard"
    config.model.width, config.train.batch_size = options.width, options.batch_size
    dataset = synthetic.synthetic_dataset("cifar100")
    config.scenario.tasks = 1
    layout = Layout()
    encoder = resnet18(config.model.width)
    pipeline = Pipeline(config, dataset, make_scenario(config.scenario, 100), encoder, layout)
    config.train.first.epochs = -(-options.steps // pipeline.steps_per_epoch(0))
    steps = config.train.first.epochs * pipeline.steps_per_epoch(0)
    transform = augment.train_transform("standard", normalisation="cifar100", pad=4)
    objective = make_objective(
        "base", config=config, encoder=encoder, num_classes=100, image_shape=(32, 32, 3), transform=transform
    )
    feeds = [feed for feed, _ in pipeline.feeds(0, 0, steps, lambda epoch: 0.01)]
    with Workdir(folder, config) as work:
        trajectory = Trajectory("bench", objective, pipeline, work)
        task, data = make_task(pipeline, 0), pipeline.resident("train")

        def clock(run) -> float:
            state = jax.block_until_ready(layout.replicate(trajectory.begin(None, task)))
            start = time.perf_counter()
            jax.block_until_ready(run(state))
            trajectory.checkpoints.wait()
            return time.perf_counter() - start

        def bare(state):
            for feed in feeds:
                state, _ = trajectory.step(state, None, data, feed, task)
            return state

        def looped(state, every=10 * steps):
            after = trajectory.after_call(0, 0, every, 10 * steps)
            return train_steps(
                trajectory.step, state, None, pipeline, 0, log=work.logger("bench"), after_call=after
            )

        def checkpointed(state):
            return looped(state, every=steps - 1)  # one, near the end, and then waited for

        kinds = {"bare": bare, "looped": looped, "checkpointed": checkpointed}
        for kind in kinds.values():
            clock(kind)
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(options.pairs):
            for name, kind in kinds.items():
                times[name].append(clock(kind))
        trajectory.close()
    ratio = [a / b for a, b in zip(times["looped"], times["bare"], strict=True)]
    extra = [a - b for a, b in zip(times["checkpointed"], times["looped"], strict=True)]
    per_step = statistics.median(times["bare"]) / steps
    return {
        "seconds per bare step": per_step,
        "loop / bare steps": statistics.median(ratio),
        "checkpoint, seconds": float(np.median(extra)),
        "checkpoint per epoch, fraction": float(np.median(extra)) / (EPOCH * per_step),
    }


if __name__ == "__main__":
    main()
