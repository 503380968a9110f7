"""What limiting BLAS to one thread is worth to the evolution (rose_jax/evolution/threads.py).

The same stream evolves with the limit and without, in turns: milliseconds per image, and their ratio. An idle machine
hides the difference that a busy one has, so `--busy N` keeps N cores at work meanwhile.
"""

import argparse
import contextlib
import subprocess
import sys
from unittest import mock

import numpy as np

from rose_jax import evolve_features
from rose_jax.evolution import threads

from .shared import Report, Row, by_columns, in_turns

IMAGES, CLASSES, CAPACITY = 2048, 100, 3000
# Ends when whoever started it does, so that a killed benchmark leaves no core at work.
WORK = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512], help="of the features (128 512)")
    parser.add_argument("--busy", type=int, default=0, help="cores that do something else meanwhile (0)")


def run(options: argparse.Namespace, report: Report) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(options.busy):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", WORK]))
            stack.callback(other.kill)
        rows = {f"d = {dim}": measure(dim, options.rounds) for dim in options.dims}
    report.table(f"S = {CAPACITY}, {CLASSES} classes, busy cores: {options.busy}", rows)


def measure(dim: int, rounds: int) -> Row:
    rng = np.random.default_rng(0)
    z_old = rng.normal(size=(IMAGES, dim)).astype(np.float32)
    z_new = z_old + 0.1 * rng.normal(size=z_old.shape).astype(np.float32)
    prototypes = rng.normal(size=(CLASSES, dim)).astype(np.float32)

    def one_thread():
        return evolve_features(z_old, z_new, prototypes, prototypes[:10], capacity=CAPACITY)

    def thread_per_core():
        with mock.patch.object(threads, "one_blas_thread", contextlib.nullcontext):
            return one_thread()

    ways = {"one thread": one_thread, "a thread per core": thread_per_core}
    return by_columns(in_turns(ways, rounds, per=IMAGES), "one thread")
