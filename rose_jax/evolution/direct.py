"""Eq. 12 as it stands: Gram matrices of the whole queue and one dense solve per update. The reference."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import lu_factor, lu_solve

from rose_jax.evolution import core, queue_metric
from rose_jax.evolution import queue as ring
from rose_jax.evolution.core import Counts, Evolver, Metric, QueueMetric, Rows, matmul, move


class DirectState(NamedTuple):
    queue: ring.Queue
    prototypes: Array  # [C, d] as given
    moved: Array  # [C, d] after the last update
    moves: Array  # bool [C]
    seen: Array  # bool [C]
    projector: Array  # [d, d] W₀
    lam: Array  # [] λ, fixed at stage start
    metric: Metric | None
    gram: queue_metric.NewGram | None  # of the queue's new features, if that is the metric
    counts: Counts


def direct(capacity: int, alpha: float, granularity: int = 1, ridge: float | None = None) -> Evolver:
    """RoSE by `W = (G + λI)⁻¹(H + λW₀)`, which at ridge 0 is Eq. 12."""

    def init(
        prototypes: Array,
        moves: Array,
        seen: Array,
        projector: Array,
        key: Array,
        metric: Metric | QueueMetric | None = None,
    ) -> DirectState:
        queue = ring.fill(key, prototypes, moves, projector, capacity, alpha)
        moved = move(prototypes, moves, projector)
        rho, _ = core.ridge_for(capacity, prototypes.shape[1], ridge)
        lam = rho * jnp.mean(jnp.sum(queue.old**2, axis=0))  # ρ·tr(G₀)/d
        gram = None
        if isinstance(metric, QueueMetric):
            gram, metric = queue_metric.begin(queue.new, metric), None
        return DirectState(queue, prototypes, moved, moves, seen, projector, lam, metric, gram, core.zero_counts())

    def update(state: DirectState, rows: Rows) -> tuple[DirectState, Array]:
        queue = ring.push(state.queue, rows.z_old, rows.z_new, rows.enters)
        drift_map, pivots = solve(queue, state.projector, state.lam)
        moved = move(state.prototypes, state.moves, drift_map)
        finite = jnp.isfinite(moved).all()
        moved = jnp.where(finite, moved, state.moved)
        ill_posed = core.ill_posed(pivots, state.lam)
        counts = core.count_updates(state.counts, rows.enters.any(), ~finite, ill_posed)
        if state.gram is None:
            scores = core.score_table(rows.z_new, moved, state.seen, rows.bad, state.metric)
            return state._replace(queue=queue, moved=moved, counts=counts), scores
        gram = queue_metric.rebuilt(queue.new, state.gram)
        scores = queue_metric.scores_now(gram.matrix, rows.z_new, moved, state.seen, rows.bad)
        return state._replace(queue=queue, moved=moved, gram=gram, counts=counts), scores

    def drift_map(state: DirectState) -> Array:
        solution, _ = solve(state.queue, state.projector, state.lam)
        return jnp.where(jnp.isfinite(solution).all(), solution, state.projector)

    def metric_now(state: DirectState) -> Metric | None:
        return state.metric if state.gram is None else queue_metric.as_metric(state.gram.matrix)

    step = core.step_in_groups(update, lambda images: min(granularity, images))
    return Evolver(init, step, drift_map, metric=metric_now)


def solve(queue: ring.Queue, projector: Array, lam: Array) -> tuple[Array, Array]:
    """Eq. 12 with the ridge centred on W₀: the drift map [d, d], and the pivots [d] of its elimination."""
    gram = matmul(queue.old.T, queue.old)
    cross = matmul(queue.old.T, queue.new)
    system = lu_factor(gram + lam * jnp.eye(gram.shape[0], dtype=gram.dtype))
    return lu_solve(system, cross + lam * projector), jnp.abs(jnp.diagonal(system[0]))
