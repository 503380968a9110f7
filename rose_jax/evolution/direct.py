"""Eq. 12 as it stands: Gram matrices of the whole queue and one dense solve per update. The reference."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import lu_factor, lu_solve

from rose_jax.evolution import queue as ring
from rose_jax.evolution.core import (
    Counts,
    Evolver,
    Metric,
    Rows,
    count_rows,
    ill_posed,
    matmul,
    ridge_for,
    scan_groups,
    score_table,
    screen,
    zero_counts,
)


class DirectState(NamedTuple):
    queue: ring.Queue
    prototypes: jax.Array  # [C, d] as given
    moved: jax.Array  # [C, d] after the last update
    moves: jax.Array  # bool [C]
    seen: jax.Array  # bool [C]
    projector: jax.Array  # [d, d] W₀
    lam: jax.Array  # [] λ, fixed at stage start
    metric: Metric | None
    counts: Counts


def direct(capacity: int, alpha: float, granularity: int = 1, ridge: float | None = None) -> Evolver:
    """RoSE by `W = (G + λI)⁻¹(H + λW₀)`, which at ridge 0 is Eq. 12."""

    def init(prototypes, moves, seen, projector, key, metric=None) -> DirectState:
        queue = ring.fill(key, prototypes, moves, projector, capacity, alpha)
        moved = jnp.where(moves[:, None], matmul(prototypes, projector), prototypes)
        rho, _ = ridge_for(capacity, prototypes.shape[1], ridge)
        lam = rho * jnp.mean(jnp.sum(queue.old**2, axis=0))  # ρ·tr(G₀)/d
        return DirectState(queue, prototypes, moved, moves, seen, projector, lam, metric, zero_counts())

    def update(state: DirectState, rows: Rows):
        queue = ring.push(state.queue, rows.z_old, rows.z_new, rows.enters)
        drift_map, pivots = solve(queue, state.projector, state.lam)
        moved = jnp.where(state.moves[:, None], matmul(state.prototypes, drift_map), state.prototypes)
        finite = jnp.isfinite(moved).all()
        moved = jnp.where(finite, moved, state.moved)
        updated = rows.enters.any()
        counts = state.counts._replace(
            broken_steps=state.counts.broken_steps + (updated & ~finite),
            ill_posed_steps=state.counts.ill_posed_steps + (updated & ill_posed(pivots, state.lam)),
        )
        scores = score_table(rows.z_new, moved, state.seen, rows.bad, state.metric)
        return state._replace(queue=queue, moved=moved, counts=counts), scores

    def step(state: DirectState, z_old, z_new, valid, enters=None):
        if z_new.shape[0] == 0:
            return state, jnp.zeros((0, state.seen.shape[0]), state.moved.dtype)
        rows = screen(z_old, z_new, valid, enters, state.moved.dtype)
        state = state._replace(counts=count_rows(state.counts, rows))
        return scan_groups(update, state, rows, granularity)

    def drift_map(state: DirectState) -> jax.Array:
        solution, _ = solve(state.queue, state.projector, state.lam)
        return jnp.where(jnp.isfinite(solution).all(), solution, state.projector)

    def with_metric(state: DirectState, metric: Metric) -> DirectState:
        return state._replace(metric=metric)

    return Evolver(init, step, lambda state: state.moved, drift_map, with_metric)


def solve(queue: ring.Queue, projector, lam) -> tuple[jax.Array, jax.Array]:
    """Eq. 12 with the ridge centred on W₀: the drift map [d, d], and the pivots [d] of its elimination."""
    gram = matmul(queue.old.T, queue.old)
    cross = matmul(queue.old.T, queue.new)
    system = lu_factor(gram + lam * jnp.eye(gram.shape[0], dtype=gram.dtype))
    return lu_solve(system, cross + lam * projector), jnp.abs(jnp.diagonal(system[0]))
