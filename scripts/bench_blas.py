"""What limiting BLAS to one thread is worth to the evolution: `python scripts/bench_blas.py [--dims 128 512]`.

Each pair is the same stream with the limit and without, in turns; the figure is the median of their ratios, and how it
spreads. An idle machine hides the difference that a busy one has, so `--busy N` keeps N cores at work meanwhile.
"""

import argparse
import contextlib
import multiprocessing
import os
import time
from unittest import mock

import numpy as np

from rose_jax import evolve_features
from rose_jax.evolution import threads

IMAGES, CLASSES, CAPACITY = 2048, 100, 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0, help="cores that do something else meanwhile")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {options.busy} kept at work, S = {CAPACITY}, {CLASSES} classes")
    with contextlib.ExitStack() as stack:
        for _ in range(options.busy):
            other = multiprocessing.get_context("spawn").Process(target=_work, daemon=True)
            other.start()
            stack.callback(other.terminate)
        for dim in options.dims:
            one, many = measure(dim, options.pairs)
            low, middle, high = np.quantile(np.divide(many, one), (0.25, 0.5, 0.75))
            print(
                f"d = {dim}: one thread {np.median(one):.3f} ms an image, a thread per core {np.median(many):.3f}; "
                f"ratio {middle:.2f} (quartiles {low:.2f} to {high:.2f}, {options.pairs} pairs)"
            )


def measure(dim: int, pairs: int) -> tuple[list[float], list[float]]:
    """Milliseconds per image with one thread and with as many as there are cores."""
    rng = np.random.default_rng(0)
    z_old = rng.normal(size=(IMAGES, dim)).astype(np.float32)
    z_new = z_old + 0.1 * rng.normal(size=z_old.shape).astype(np.float32)
    prototypes = rng.normal(size=(CLASSES, dim)).astype(np.float32)

    def milliseconds() -> float:
        begun = time.perf_counter()
        evolve_features(z_old, z_new, prototypes, prototypes[:10], capacity=CAPACITY)
        return 1e3 * (time.perf_counter() - begun) / IMAGES

    milliseconds()  # compiles
    one, many = [], []
    for _ in range(pairs):
        one.append(milliseconds())
        with mock.patch.object(threads, "one_blas_thread", contextlib.nullcontext):
            many.append(milliseconds())
    return one, many


def _work() -> None:
    while True:
        sum(range(10**6))


if __name__ == "__main__":
    main()
