"""What the host and the checkpoints add to an epoch of CIFAR-100's shape.

bare: the epoch's steps alone, inputs ready. looped: through the training loop (feeds, log, progress). checkpointed: with
one asynchronous checkpoint halfway, too, waited for at the end. The first task is timed: without a teacher its steps are
the shortest, so whatever is not a step weighs most. The machine should do nothing else.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import jax
import numpy as np

from rose_jax.config import Config
from rose_jax.data import augment, sources
from rose_jax.data.pipeline import Images
from rose_jax.data.scenario import make_scenario
from rose_jax.models import make_encoder
from rose_jax.run.features import Features
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir
from rose_jax.train.loop import make_task, train_steps
from rose_jax.types import Parts

from .shared import Report, Times, by_rows, in_turns, ratio

CLASSES, TASKS = 100, 10


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=16, help="of the network (16)")
    parser.add_argument("--batch", type=int, default=128, help="images of a step (128)")
    parser.add_argument("--steps", type=int, default=39, help="of an epoch, at least (39: CIFAR-100 in ten tasks)")


def run(options: argparse.Namespace, report: Report) -> None:
    features = make_features(options)
    steps = features.images.steps_per_epoch(0, options.batch)
    with tempfile.TemporaryDirectory() as folder:
        times = measure(features, Path(folder), options.rounds)
    title = f"epochs of {steps} steps, {options.batch} images each, width {options.width}"
    report.table(title, by_rows(times, "bare", per="step"))
    report.claim("looped / bare", ratio(times["looped"], times["bare"]), "<=", 1.05)
    report.claim("checkpointed / looped", ratio(times["checkpointed"], times["looped"]), "<=", 1.02)


# Below: all that the benchmark knows of how a task is trained.


def make_features(options: argparse.Namespace) -> Features:
    """As experiment.make_features, of noise."""
    config = Config(name="bench")
    config.data.dataset, config.scenario.tasks = "cifar100", TASKS
    config.model.width, config.train.batch_size = options.width, options.batch
    config.train.first.epochs = 1
    dataset = noise(-(-options.steps * options.batch * TASKS // CLASSES))
    scenario = make_scenario(config.scenario, CLASSES)
    images = Images(dataset, scenario, Layout(), config.seed, decode_workers=0)
    normalise = augment.eval_transform("cifar100")
    transform = augment.train_transform("standard", normalise=normalise, pad=4)
    parts = Parts(config, make_encoder(config.model), scenario, images.image_shape, normalise, transform)
    return Features(images, parts)


def measure(features: Features, folder: Path, rounds: int) -> Times:
    """Seconds of a step each way, from whole epochs."""
    images, config, layout = features.images, features.parts.config, features.images.layout
    with (
        Workdir(folder, config) as work,
        contextlib.closing(Trajectory("base", features.parts, features, work)) as trajectory,
    ):
        batches, data, log = trajectory.batches, images.resident("train"), work.logger("base")
        steps = batches.steps_per_epoch(0)
        task = make_task(images, config.train.first.weight_decay, 0)
        feeds = [feed for feed, _ in batches.feeds(0, 0, steps)]
        lr = layout.replicate(np.full(1, config.train.first.lr, np.float32))

        def begin():
            return (layout.replicate(trajectory.begin(None, task)),)

        def bare(state):
            for feed in feeds:
                state, _ = trajectory.step(state, None, data, feed, lr, task)
            return state

        def looped(state, checkpoint_every=2 * steps):
            after = trajectory.after_call(0, 0, checkpoint_every, last=2 * steps)
            work.progress.task(0, TASKS, steps)
            return train_steps(trajectory.step, state, None, batches, task, 0, log=log, after_call=after)

        def checkpointed(state):
            state = jax.block_until_ready(looped(state, steps // 2 + 1))
            trajectory.checkpoints.wait()
            return state

        ways = {way.__name__: way for way in (bare, looped, checkpointed)}
        return in_turns(ways, rounds, per=steps, prepare=begin)


def noise(per_class: int) -> sources.Dataset:
    """As many images as are asked for in CIFAR's shape; what they show takes no time."""
    labels = np.repeat(np.arange(CLASSES, dtype=np.int32), per_class)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    split = sources.ArraySplit(images, labels)
    return sources.Dataset("cifar100", CLASSES, tuple(map(str, range(CLASSES))), 32, split, split, "noise")
