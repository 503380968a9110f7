"""The gradient descent the paper compares with: one Adam step per update instead of the exact solution.

The method `gd` steps on the incoming pairs, `gd_queue` on the whole queue.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from rose_jax.errors import UserError, unknown
from rose_jax.evolution import core, queue_metric
from rose_jax.evolution import queue as ring
from rose_jax.evolution.core import Counts, Evolver, Metric, QueueMetric, Rows, matmul, move


class Gram(NamedTuple):
    """The queue and the two sums that its gradient needs."""

    queue: ring.Queue
    gram: Array  # [d, d] G = QᵀQ
    cross: Array  # [d, d] H = QᵀQ'
    new: queue_metric.NewGram | None  # of Q', if that is the metric
    age: Array  # int32 []: pairs entered since G and H were last recomputed


class GDState(NamedTuple):
    drift_map: Array  # [d, d] W
    adam: optax.OptState
    memory: Gram | None  # gd_queue only
    prototypes: Array  # [C, d] as given
    moved: Array  # [C, d] after the last update
    moves: Array  # bool [C]
    seen: Array  # bool [C]
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
    queue: step on the whole queue (`capacity`, `alpha` as rose's) instead of on the incoming pairs alone.
    rebuild_every: pairs after which G and H are recomputed from the queue.
    """
    if init not in INITS:
        raise unknown("gd_init", init, INITS)
    adam = optax.adam(lr)

    def begin(
        prototypes: Array,
        moves: Array,
        seen: Array,
        projector: Array,
        key: Array,
        metric: Metric | QueueMetric | None = None,
    ) -> GDState:
        fill_key, start_key = jax.random.split(key)
        memory, gram = None, None
        if queue:
            pairs = ring.fill(fill_key, prototypes, moves, projector, capacity, alpha)
            if isinstance(metric, QueueMetric):
                gram, metric = queue_metric.begin(pairs.new, metric), None
            memory = Gram(pairs, *sums(pairs), gram, jnp.zeros((), jnp.int32))
        if isinstance(metric, QueueMetric):
            raise UserError("gd keeps no queue, so that there is no metric of one. gd_queue does, and rose.")
        start = INITS[init](projector, start_key)
        moved = move(prototypes, moves, start)
        return GDState(start, adam.init(start), memory, prototypes, moved, moves, seen, metric, core.zero_counts())

    def update(state: GDState, rows: Rows) -> tuple[GDState, Array]:
        entered = rows.enters.sum(dtype=jnp.int32)
        if state.memory is None:
            memory = None
            residual = matmul(rows.z_old, state.drift_map) - jnp.where(rows.enters[:, None], rows.z_new, 0)
            gradient = matmul(rows.z_old.T, residual) * (2.0 / (jnp.maximum(entered, 1) * rows.z_old.shape[1]))
            # This bounds ‖gradient‖² from above and is cheaper than a sum over its d x d entries.
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
        moved = move(state.prototypes, state.moves, drift_map)
        counts = core.count_updates(state.counts, entered > 0, ~finite)
        if memory is None or memory.new is None:
            scores = core.score_table(rows.z_new, moved, state.seen, rows.bad, state.metric)
        else:
            scores = queue_metric.scores_now(memory.new.matrix, rows.z_new, moved, state.seen, rows.bad)
        state = state._replace(drift_map=drift_map, adam=adam_state, memory=memory, moved=moved, counts=counts)
        return state, scores

    step = core.step_in_groups(update, lambda images: min(granularity, images))

    def metric_now(state: GDState) -> Metric | None:
        if state.memory is None or state.memory.new is None:
            return state.metric
        return queue_metric.as_metric(state.memory.new.matrix)

    return Evolver(begin, step, map=lambda state: state.drift_map, metric=metric_now)


INITS: dict[str, Callable[[Array, Array], Array]] = {  # (projector, key) -> W
    "trained": lambda projector, key: projector,
    "identity": lambda projector, key: jnp.eye(projector.shape[0], dtype=projector.dtype),
    "random": lambda projector, key: jax.random.uniform(
        key, projector.shape, projector.dtype, -(projector.shape[0] ** -0.5), projector.shape[0] ** -0.5
    ),
}


def sums(queue: ring.Queue) -> tuple[Array, Array]:
    """G = QᵀQ and H = QᵀQ' of the whole queue."""
    return matmul(queue.old.T, queue.old), matmul(queue.old.T, queue.new)


def push(memory: Gram, rows: Rows, rebuild_every: int) -> Gram:
    """Queue the entering pairs; add them to G and H and subtract those that leave."""
    queue = memory.queue
    capacity = queue.old.shape[0]
    slots, head = ring.slots_for(queue.head, rows.enters, capacity)
    stays = (slots < capacity)[:, None]
    leaves = ring.take(queue.new, slots)
    signed = jnp.concatenate([jnp.where(stays, rows.z_old, 0), -ring.take(queue.old, slots)])
    old = jnp.concatenate([rows.z_old, ring.take(queue.old, slots)])
    new = jnp.concatenate([rows.z_new, leaves])
    queue = ring.Queue(ring.put(queue.old, slots, rows.z_old), ring.put(queue.new, slots, rows.z_new), head)
    age = memory.age + rows.enters.sum(dtype=jnp.int32)
    gram, cross = memory.gram + matmul(signed.T, old), memory.cross + matmul(signed.T, new)
    due = (age >= rebuild_every) | ~jnp.isfinite(jnp.trace(gram) + jnp.trace(cross))
    of_new = memory.new
    if of_new is not None:
        of_new = of_new._replace(matrix=queue_metric.changed(of_new.matrix, rows.z_new, stays[:, 0], leaves))
        fell, peak = queue_metric.fell(of_new)
        due, of_new = due | fell, of_new._replace(peak=peak)

    def rebuilt() -> tuple[Array, Array, queue_metric.NewGram | None]:
        return *sums(queue), None if of_new is None else queue_metric.rebuilt(queue.new, of_new)

    gram, cross, of_new = jax.lax.cond(due, rebuilt, lambda: (gram, cross, of_new))
    return Gram(queue, gram, cross, of_new, jnp.where(due, 0, age))
