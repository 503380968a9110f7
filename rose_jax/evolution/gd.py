"""The gradient-descent rows the paper compares with: one Adam step per update instead of the exact solution.

`gd` steps on the incoming pairs, `gd_queue` on the whole queue; both have the interface of rose.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rose_jax.errors import unknown
from rose_jax.evolution import queue as ring
from rose_jax.evolution.core import (
    Counts,
    Evolver,
    Metric,
    Rows,
    count_rows,
    matmul,
    scan_groups,
    score_table,
    screen,
    zero_counts,
)


class Gram(NamedTuple):
    """The queue and its sums; all that the gradient over the queue needs."""

    queue: ring.Queue
    gram: jax.Array  # [d, d] G = QᵀQ
    cross: jax.Array  # [d, d] H = QᵀQ'
    age: jax.Array  # int32 []: pairs entered since G and H were last summed afresh


class GDState(NamedTuple):
    drift_map: jax.Array  # [d, d] W
    adam: optax.OptState
    memory: Gram | None  # gd_queue only
    prototypes: jax.Array  # [C, d] as given
    moved: jax.Array  # [C, d] after the last update
    moves: jax.Array  # bool [C]
    seen: jax.Array  # bool [C]
    metric: Metric | None
    counts: Counts


def gd(
    lr: float = 1e-3,
    granularity: int = 1,
    init: str = "trained",
    queue: bool = False,
    *,
    capacity: int = 3000,
    alpha: float = 0.2,
    rebuild_every: int = 4096,
) -> Evolver:
    """One Adam step per update on mean((z_old W − z_new)²), the loss the projector is trained with.

    init: W starts as the "trained" projector, the "identity", or "random" (uniform ±1/√d).
    queue: step on the whole queue (filled as rose fills it) instead of on the incoming pairs alone;
        `capacity` and `alpha` are the queue's, and G and H are summed afresh every `rebuild_every` pairs.
    """
    if init not in INITS:
        raise unknown("gd_init", init, INITS)
    adam = optax.adam(lr)

    def begin(prototypes, moves, seen, projector, key, metric=None) -> GDState:
        fill_key, start_key = jax.random.split(key)
        memory = None
        if queue:
            pairs = ring.fill(fill_key, prototypes, moves, projector, capacity, alpha)
            memory = Gram(pairs, *sums(pairs), jnp.zeros((), jnp.int32))
        start = INITS[init](projector, start_key)
        moved = jnp.where(moves[:, None], matmul(prototypes, start), prototypes)
        return GDState(start, adam.init(start), memory, prototypes, moved, moves, seen, metric, zero_counts())

    def update(state: GDState, rows: Rows):
        entered = rows.enters.sum(dtype=jnp.int32)
        if state.memory is None:
            memory = None
            residual = matmul(rows.z_old, state.drift_map) - jnp.where(rows.enters[:, None], rows.z_new, 0)
            gradient = matmul(rows.z_old.T, residual) * (2.0 / (jnp.maximum(entered, 1) * rows.z_old.shape[1]))
            # bounds ‖gradient‖² from above without a pass over d x d numbers
            finite = jnp.isfinite(jnp.sum(rows.z_old**2) * jnp.sum(residual**2))
        else:
            memory = push(state.memory, rows, rebuild_every)
            gradient = (matmul(memory.gram, state.drift_map) - memory.cross) * (2.0 / memory.queue.old.size)
            finite = jnp.isfinite(jnp.sum(gradient**2))
        change, adam_state = adam.update(gradient, state.adam)
        drift_map = state.drift_map + change
        keep = (entered == 0) | ~finite
        drift_map, adam_state = jax.tree.map(
            lambda new, old: jnp.where(keep, old, new), (drift_map, adam_state), (state.drift_map, state.adam)
        )
        moved = jnp.where(state.moves[:, None], matmul(state.prototypes, drift_map), state.prototypes)
        broken = state.counts.broken_steps + ((entered > 0) & ~finite)
        scores = score_table(rows.z_new, moved, state.seen, rows.bad, state.metric)
        return state._replace(
            drift_map=drift_map,
            adam=adam_state,
            memory=memory,
            moved=moved,
            counts=state.counts._replace(broken_steps=broken),
        ), scores

    def step(state: GDState, z_old, z_new, valid, enters=None):
        if z_new.shape[0] == 0:
            return state, jnp.zeros((0, state.seen.shape[0]), state.moved.dtype)
        rows = screen(z_old, z_new, valid, enters, state.moved.dtype)
        state = state._replace(counts=count_rows(state.counts, rows))
        return scan_groups(update, state, rows, granularity)

    def with_metric(state: GDState, metric: Metric) -> GDState:
        return state._replace(metric=metric)

    return Evolver(begin, step, lambda state: state.moved, lambda state: state.drift_map, with_metric)


INITS = {
    "trained": lambda projector, key: projector,
    "identity": lambda projector, key: jnp.eye(projector.shape[0], dtype=projector.dtype),
    "random": lambda projector, key: jax.random.uniform(
        key, projector.shape, projector.dtype, -(projector.shape[0] ** -0.5), projector.shape[0] ** -0.5
    ),
}


def sums(queue: ring.Queue) -> tuple[jax.Array, jax.Array]:
    """G = QᵀQ and H = QᵀQ', summed afresh."""
    return matmul(queue.old.T, queue.old), matmul(queue.old.T, queue.new)


def push(memory: Gram, rows: Rows, rebuild_every: int) -> Gram:
    """Queue the entering pairs; add them to G and H and subtract those that leave."""
    queue = memory.queue
    capacity = queue.old.shape[0]
    slots, head = ring.slots_for(queue.head, rows.enters, capacity)
    stays = (slots < capacity)[:, None]
    signed = jnp.concatenate([jnp.where(stays, rows.z_old, 0), -ring.take(queue.old, slots)])
    old = jnp.concatenate([rows.z_old, ring.take(queue.old, slots)])
    new = jnp.concatenate([rows.z_new, ring.take(queue.new, slots)])
    queue = ring.Queue(ring.put(queue.old, slots, rows.z_old), ring.put(queue.new, slots, rows.z_new), head)
    age = memory.age + rows.enters.sum(dtype=jnp.int32)
    gram, cross = memory.gram + matmul(signed.T, old), memory.cross + matmul(signed.T, new)
    due = (age >= rebuild_every) | ~jnp.isfinite(jnp.trace(gram) + jnp.trace(cross))
    gram, cross = jax.lax.cond(due, lambda: sums(queue), lambda: (gram, cross))
    return Gram(queue, gram, cross, jnp.where(due, 0, age))
