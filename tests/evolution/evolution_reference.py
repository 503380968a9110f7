"""Alg. 2 in float64 NumPy, written for reading: lists as queues, one dense solve per update.

And the evolvers under test, compiled once for all the tests that share their options.
"""

from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from rose_jax.evolution import Evolver, rose
from rose_jax.runtime.target import tracing_for

KEY = jax.random.key(3)
# Compilation is most of what these tests cost, and none of what they are about.
jit = (
    jax.jit
    if jax.default_backend() != "cpu"
    else lambda f: jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})
)


class Engine(NamedTuple):
    evolver: Evolver
    init: object
    step: object

    def start(self, prototypes, moves, projector, seen=None, metric=None):
        seen = np.ones(len(moves), bool) if seen is None else seen
        return self.init(prototypes, moves, seen, projector, KEY, metric)

    def run(self, stage, z_old, z_new, valid=None, enters=None, metric=None, size=200):
        """From the start of a stage over one call, padded to `size` images: state, scores [n, C]."""
        n = len(z_new)
        valid = np.ones(n, bool) if valid is None else valid
        enters = np.ones(n, bool) if enters is None else enters
        pad = max(size - n, 0)
        rows = [np.pad(x, ((0, pad), (0, 0))) for x in (z_old, z_new)]
        masks = [np.pad(x, (0, pad)) for x in (valid, enters)]
        state, scores = self.step(self.start(*stage, metric=metric), *rows, *masks)
        return state, np.asarray(scores)[:n]


def wrap(evolver: Evolver) -> Engine:
    return Engine(evolver, jit(evolver.init), jit(evolver.step))


@cache
def engine(solver="blocked", capacity=70, granularity=1, block=16, ridge=1e-4, alpha=0.2) -> Engine:
    """solver: "blocked for tpu" is what is compiled for one, run on the CPU."""
    solver, _, platform = solver.partition(" for ")
    evolver = rose(capacity, alpha, granularity, solver, ridge, block)
    if not platform:
        return wrap(evolver)

    def step(*arguments):
        with tracing_for(platform):
            return evolver.step(*arguments)

    return wrap(evolver._replace(step=step))


def queue_of(state) -> np.ndarray:
    return np.asarray(state.old if hasattr(state, "old") else state.queue.old)


def features(rng, n, dim=24, classes=12, old=8, dead=0, spread=0.4):
    """A stage in miniature: prototypes [C, d], which rows move, W₀ and n pairs of post-ReLU features."""
    prototypes = np.abs(rng.normal(size=(classes, dim)))
    projector = np.eye(dim) + 0.15 * rng.normal(size=(dim, dim))
    drift = projector + 0.15 * rng.normal(size=(dim, dim))
    labels = rng.integers(0, classes, n)
    z_old = np.maximum(prototypes[labels] + spread * rng.normal(size=(n, dim)), 0)
    z_new = np.maximum(z_old @ drift + 0.1 * rng.normal(size=(n, dim)), 0)
    if dead:
        for array in (prototypes, z_old, z_new):
            array[:, :dead] = 0
    prototypes[old:] = np.abs(prototypes[old:] @ drift)
    as_float32 = [x.astype(np.float32) for x in (prototypes, projector, z_old, z_new)]
    return as_float32[0], np.arange(classes) < old, *as_float32[1:], labels


def alg2(
    pseudo,
    prototypes,
    moves,
    projector,
    z_old,
    z_new,
    rho,
    granularity=1,
    enters=None,
    center=0.0,
    transform=None,
    queue_ridge=None,
):
    """Cosines [n, C] after each group's update, and the prototypes at the end.

    pseudo [S, d] are the queue's first old features. The ridge problem is solved literally:
    argmin ‖Q W − Q'‖² + λ‖W − W₀‖². queue_ridge: ρ of the queue's own metric, instead of the plain cosine.
    """
    prototypes, projector, z_old, z_new = (
        np.asarray(x, np.float64) for x in (prototypes, projector, z_old, z_new)
    )
    transform = np.eye(len(projector)) if transform is None else transform
    queue_old = list(np.asarray(pseudo, np.float64))
    queue_new = [z @ projector for z in queue_old]
    lam = rho * np.sum(np.square(queue_old)) / len(projector)
    new_lam = (queue_ridge or 0) * np.sum(np.square(queue_new)) / len(projector)
    scores = []
    moved = np.where(moves[:, None], prototypes @ projector, prototypes)
    for start in range(0, len(z_new), granularity):
        for i in range(start, min(start + granularity, len(z_new))):
            if enters is None or enters[i]:
                queue_old, queue_new = [*queue_old[1:], z_old[i]], [*queue_new[1:], z_new[i]]
        q, t = np.asarray(queue_old), np.asarray(queue_new)
        rows = np.concatenate([q, np.sqrt(lam) * np.eye(len(projector))])
        drift_map = np.linalg.lstsq(rows, np.concatenate([t, np.sqrt(lam) * projector]), rcond=None)[0]
        moved = np.where(moves[:, None], prototypes @ drift_map, prototypes)
        if queue_ridge is not None:
            inverse = np.linalg.inv(t.T @ t + new_lam * np.eye(len(projector)))
            transform = np.linalg.cholesky((inverse + inverse.T) / 2)
        table = (moved - center) @ transform
        for z in z_new[start : start + granularity]:
            z = (z - center) @ transform
            scores.append(table @ z / (np.linalg.norm(table, axis=1) * np.linalg.norm(z)))
    return np.asarray(scores), moved
