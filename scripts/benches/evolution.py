"""What the evolution costs, on one core: an image, a batch, the state in memory, a whole test stage.

Times are CPU time of this process, which binds itself to one core. Features are synthetic (scripts/evolution_stream.py).
`--no-stage` leaves out the encoder, which takes most of the time.
"""

import os

# One thread: read by the libraries when they are imported, and by jax when it makes its first array.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from evolution_stream import Stream, stage_of

from rose_jax import evolve_features
from rose_jax.evolution import Evolver, Metric, QueueMetric, gd, rose
from rose_jax.models.resnet import resnet18

from .shared import Report, by_rows, in_turns, ratio

CLASSES, DIM, CAPACITY, BATCH = 100, 512, 3000, 128


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-stage", action="store_true", help="leave out the whole test stage (ResNet-18)")


def run(options: argparse.Namespace, report: Report) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before jax starts its threads, which inherit it
    stream = Stream(CLASSES, DIM)
    blocked = solvers(stream, options.rounds, report)
    memory(stream, report)
    if not options.no_stage:
        budget(stream, blocked, stage(stream, options.rounds, report), report)


def solvers(stream: Stream, rounds: int, report: Report) -> float:
    """Returns the milliseconds of `blocked`."""
    metric = Metric(jnp.zeros(DIM), jnp.eye(DIM))
    evolvers = {  # with the images of a call
        "direct": (rose(CAPACITY, solver="direct"), 8),
        "blocked": (rose(CAPACITY), 1024),
        "blocked, b=32": (rose(CAPACITY, block=32), 1024),
        "blocked, b=128": (rose(CAPACITY, block=128), 1024),
        "blocked, in a metric": (rose(CAPACITY), 1024, metric),
        "blocked, the queue's metric": (rose(CAPACITY), 1024, QueueMetric(jnp.float32(0.01))),
        "blocked, calls of 128": (rose(CAPACITY), 128),
        "gd": (gd(), 256),
        "gd_queue": (gd(queue=True, capacity=CAPACITY), 32),
        "direct by batch": (rose(CAPACITY, solver="direct", granularity=BATCH), 2 * BATCH),
        "blocked by batch": (rose(CAPACITY, granularity=BATCH), 4 * BATCH),
        "gd by batch": (gd(granularity=BATCH), 4 * BATCH),
    }
    runs = {}
    for name, (evolver, images, *with_metric) in evolvers.items():
        features = tuple(map(jnp.asarray, stream.draw(images, part=0)[:2]))
        runs[name] = evolving(stream, evolver, lambda features=features: features, *with_metric)
    times = in_turns(runs, rounds, clock=time.process_time)
    times = {name: own / evolvers[name][1] for name, own in times.items()}
    rows = by_rows(times, "blocked")
    report.table(f"d = {DIM}, S = {CAPACITY}, {CLASSES} classes; image by image, or by batches of {BATCH}", rows)
    for one, other, sign, bound in (
        ("direct", "blocked", ">=", 120),
        ("gd", "blocked", ">=", 2.5),
        ("blocked, in a metric", "blocked", "<=", 1.1),
        ("blocked, the queue's metric", "blocked", "<=", 1.5),
        ("direct by batch", "blocked by batch", ">=", 4),
    ):
        report.claim(f"{one} / {other}", ratio(times[one], times[other]), sign, bound)
    return rows["blocked"]["ms per image"]


def memory(stream: Stream, report: Report) -> None:
    leaves = jax.tree.leaves(start(rose(CAPACITY), stream))
    sizes = {
        "two queues": 4 * 2 * CAPACITY * DIM,
        "three d x d matrices": 4 * 3 * DIM * DIM,
        "blocked state": sum(x.nbytes for x in leaves if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)),
    }
    report.table("size of the scan's state", {name: {"MB": size / 1e6} for name, size in sizes.items()})
    queues, matrices, state = sizes.values()
    report.claim("state / (two queues + three d x d)", state / (queues + matrices), "<=", 2)


def stage(stream: Stream, rounds: int, report: Report) -> float:
    """Returns the milliseconds of a forward pass."""
    encoder = resnet18(width=DIM // 8)
    old, new = (encoder.init(jax.random.key(i), jnp.zeros((32, 32, 3))) for i in (0, 1))
    images = jax.random.normal(jax.random.key(2), (BATCH, 32, 32, 3))
    encode = jax.jit(lambda variables, images: encoder.apply(variables, images)[0]["feature"])

    def both():
        return encode(old, images), encode(new, images)

    runs = {
        "one forward pass": lambda: encode(new, images),
        "two forward passes": both,
        "two + rose": evolving(stream, rose(CAPACITY), both),
        "two + gd": evolving(stream, gd(), both),
    }
    times = in_turns(runs, rounds, per=BATCH, clock=time.process_time)
    rows = by_rows(times, "one forward pass")
    report.table(f"whole test stage: ResNet-18, width {DIM // 8}, 32 x 32, encoder batch {BATCH}", rows)
    added = ratio(times["two + rose"], times["two forward passes"])
    report.claim("test stage with rose / two forward passes", added, "<=", 1.05)
    return rows["one forward pass"]["ms per image"]


def budget(stream: Stream, blocked: float, forward: float, report: Report) -> None:
    z_old, z_new, labels = stream.draw(6000, part=7)
    begin, no_new, rows = stage_of(stream), np.zeros((0, DIM)), {}
    for every in (1, 2, 4, 8, 16):
        found = evolve_features(z_old, z_new, begin.prototypes, no_new, begin.projector, evolve_every=every)
        rows[f"k={every}"] = {
            "accuracy, %": 100 * float(np.mean(found.predictions == labels)),
            "cost of a test image, x k=1": ((1 + 1 / every) * forward + blocked) / (2 * forward + blocked),
        }
    report.table("evolve_every=k on the synthetic stream (6000 images)", rows)


def evolving(
    stream: Stream, evolver: Evolver, features: Callable, metric: Metric | QueueMetric | None = None
) -> Callable:
    """() -> scores of the images whose features() are (old, new); the state goes on from call to call."""
    state, step = start(evolver, stream, metric), jax.jit(evolver.step, donate_argnums=0)

    def run():
        nonlocal state
        z_old, z_new = features()
        state, scores = step(state, z_old, z_new, np.ones(len(z_old), bool))
        return scores

    return run


def start(evolver: Evolver, stream: Stream, metric: Metric | QueueMetric | None = None) -> Any:
    begin, all_classes = stage_of(stream), np.ones(CLASSES, bool)
    key = jax.random.key(0)
    return jax.jit(evolver.init)(begin.prototypes, all_classes, all_classes, begin.projector, key, metric)
