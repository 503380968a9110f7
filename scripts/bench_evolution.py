"""What the evolution costs: a table, and the same as JSON. All claims are ratios within one run, on one core.

    python scripts/bench_evolution.py [--repeats 7] [--no-stage] [--out bench_evolution.json]

Times are CPU time of this process, pinned to one core: medians over repeats that take turns, so that whatever
else the machine does falls on all alike. `--no-stage` leaves out the encoder, which takes most of the time.
Exits with 1 if a bound is missed.
"""

import os

# One thread: read by the libraries when they are imported, and by jax when it makes its first array.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from evolution_stream import Stream, stage_of

from rose_jax.evolution import Evolver, Metric, evolve_features, gd, rose
from rose_jax.runtime.files import write_json

CLASSES, DIM, CAPACITY, BATCH = 100, 512, 3000, 128


class Claim(NamedTuple):
    name: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-stage", action="store_true", help="leave out the whole test stage (ResNet-18)")
    parser.add_argument("--out", default="bench_evolution.json")
    args = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})  # before jax starts its threads, so that they inherit it
    stream = Stream(CLASSES, DIM)
    claims, tables = [], {}
    for part in (per_image, per_batch, memory) + (() if args.no_stage else (stage,)):
        tables[part.__name__], found = part(stream, args.repeats)
        claims += found
        show(part.__doc__ or "", tables[part.__name__])
    if not args.no_stage:
        tables["budget"] = budget(stream, tables["per_image"], tables["stage"])
        show(budget.__doc__ or "", tables["budget"])
    print("\nclaims")
    for claim in claims:
        relation, verdict = (">=" if claim.at_least else "<="), ("" if claim.holds else "   MISSED")
        print(f"  {claim.name:58} {claim.value:9.3f}  {relation} {claim.bound:g}{verdict}")
    report = {
        "setting": {"classes": CLASSES, "dim": DIM, "capacity": CAPACITY, "batch": BATCH, "repeats": args.repeats},
        "environment": {"jax": jax.__version__, "numpy": np.__version__, "core": core},
        "tables": tables,
        "claims": [claim._asdict() | {"holds": claim.holds} for claim in claims],
    }
    write_json(Path(args.out), report)
    print(f"\nwritten: {args.out}")
    return 0 if all(claim.holds for claim in claims) else 1


def per_image(stream: Stream, repeats: int):
    """granularity 1, ms per image"""
    metric = Metric(jnp.zeros(DIM), jnp.eye(DIM))
    runs = {
        "direct": run_of(rose(CAPACITY, solver="direct"), stream, 8),
        "blocked": run_of(rose(CAPACITY), stream, 1024),
        "blocked, b=32": run_of(rose(CAPACITY, block=32), stream, 1024),
        "blocked, b=128": run_of(rose(CAPACITY, block=128), stream, 1024),
        "blocked, whitened": run_of(rose(CAPACITY), stream, 1024, metric),
        "blocked, calls of 128": run_of(rose(CAPACITY), stream, 128),
        "gd": run_of(gd(), stream, 256),
        "gd_queue": run_of(gd(queue=True, capacity=CAPACITY), stream, 32),
    }
    times = measure(runs, repeats)
    return times, [
        Claim("direct / blocked, per image", times["direct"] / times["blocked"], 120),
        Claim("gd / blocked, per image", times["gd"] / times["blocked"], 2.5),
        Claim("blocked whitened / blocked", times["blocked, whitened"] / times["blocked"], 1.1, at_least=False),
    ]


def per_batch(stream: Stream, repeats: int):
    """granularity 128, ms per batch of 128"""
    runs = {
        "direct": run_of(rose(CAPACITY, solver="direct", granularity=BATCH), stream, 2 * BATCH),
        "blocked": run_of(rose(CAPACITY, granularity=BATCH), stream, 4 * BATCH),
        "gd": run_of(gd(granularity=BATCH), stream, 4 * BATCH),
    }
    times = {name: BATCH * value for name, value in measure(runs, repeats).items()}
    return times, [Claim("direct / blocked, per batch of 128", times["direct"] / times["blocked"], 4)]


def memory(stream: Stream, repeats: int):
    """size of the scan's state, MB"""
    queues = 4 * 2 * CAPACITY * DIM
    matrices = 4 * 3 * DIM * DIM
    state = start(rose(CAPACITY), stream)
    size = sum(
        leaf.nbytes for leaf in jax.tree.leaves(state) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )
    sizes = {"two queues": queues / 1e6, "three d x d matrices": matrices / 1e6, "blocked state": size / 1e6}
    claim = Claim("state / (two queues + three d x d)", size / (queues + matrices), 2, at_least=False)
    return sizes, [claim]


def stage(stream: Stream, repeats: int):
    """whole test stage: ResNet-18, width 64, 32x32, encoder batch 128; ms per image"""
    from rose_jax.models.resnet import resnet18

    encoder = resnet18(width=DIM // 8)
    old, new = (encoder.init(jax.random.key(i), jnp.zeros((32, 32, 3))) for i in (0, 1))
    images = jax.random.normal(jax.random.key(2), (BATCH, 32, 32, 3))
    encode = jax.jit(lambda variables, images: encoder.apply(variables, images)[0]["feature"])
    valid = np.ones(BATCH, bool)

    def evolving(evolver: Evolver) -> Callable[[], tuple[Any, int]]:
        state, step = start(evolver, stream), jax.jit(evolver.step, donate_argnums=0)

        def run():
            nonlocal state
            state, scores = step(state, encode(old, images), encode(new, images), valid)
            return scores, BATCH

        return run

    runs = {
        "one forward pass (no evolution)": lambda: (encode(new, images), BATCH),
        "two forward passes": lambda: ((encode(old, images), encode(new, images)), BATCH),
        "two + rose": evolving(rose(CAPACITY)),
        "two + gd": evolving(gd()),
    }
    times = measure(runs, repeats)
    one, two = times["one forward pass (no evolution)"], times["two forward passes"]
    table = dict(times)
    for name in ("two forward passes", "two + rose", "two + gd"):
        table[f"{name} / one forward pass"] = times[name] / one
    return table, [Claim("test stage with rose / two forward passes", times["two + rose"] / two, 1.05, False)]


def budget(stream: Stream, per_image: dict[str, float], stage: dict[str, float]) -> dict[str, dict[str, float]]:
    """evolve_every=k on the synthetic stream (6000 images): accuracy, and cost of a test image against k=1"""
    z_old, z_new, labels = stream.draw(6000, part=7)
    begin = stage_of(stream)
    forward = stage["one forward pass (no evolution)"]
    whole = 2 * forward + per_image["blocked"]
    table = {}
    for every in (1, 2, 4, 8, 16):
        found = evolve_features(
            z_old, z_new, begin.prototypes, np.zeros((0, DIM)), begin.projector, evolve_every=every
        )
        cost = (1 + 1 / every) * forward + per_image["blocked"]
        table[f"k={every}"] = {
            "accuracy_percent": 100 * float(np.mean(found.predictions == labels)),
            "cost": cost / whole,
        }
    return table


def start(evolver: Evolver, stream: Stream, metric: Metric | None = None) -> Any:
    begin = stage_of(stream)
    everything = np.ones(CLASSES, bool)
    key = jax.random.key(0)
    return jax.jit(evolver.init)(begin.prototypes, everything, everything, begin.projector, key, metric)


def run_of(evolver: Evolver, stream: Stream, images: int, metric: Metric | None = None):
    """A function that evolves on `images` images and says how many they were; its state goes on and on."""
    state, step = start(evolver, stream, metric), jax.jit(evolver.step, donate_argnums=0)
    z_old, z_new, _ = stream.draw(images, part=0)
    arguments = jnp.asarray(z_old), jnp.asarray(z_new), np.ones(images, bool)

    def run():
        nonlocal state
        state, scores = step(state, *arguments)
        return scores, images

    return run


def measure(runs: dict[str, Callable[[], tuple[Any, int]]], repeats: int) -> dict[str, float]:
    """Median CPU milliseconds per image of each, taking turns; the first turn compiles and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            begin = time.process_time()
            result, images = run()
            jax.block_until_ready(result)
            times[name].append(1e3 * (time.process_time() - begin) / images)
    return {name: float(np.median(values[1:])) for name, values in times.items()}


def show(title: str, table: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in table.items():
        shown = (
            f"{value:10.3f}" if isinstance(value, float) else "  ".join(f"{k} {v:.3f}" for k, v in value.items())
        )
        print(f"  {name:44} {shown}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
