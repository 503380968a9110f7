"""The same solution as `direct` after every image, with one factorisation per block of images.

With V = (G + λI)⁻¹ at a block's start, u_j and t_j the old and new features that enter (s_j = +1) or leave (-1),
and A = U V Uᵀ, the map after k of these events is W_k = W + V U_kᵀ (S_k + A_k)⁻¹ (T_k - U_k W). One unpivoted LDLᵀ
of S + A factors all the leading blocks S_k + A_k at once, so that every p W_k is a running sum of rank-one terms.
W itself is never formed, and rounding errors do not reach the next block. New features are kept as residuals
t - u W₀ to the trained map: this centres the ridge on W₀, and a queue of pseudo-features gives back exactly W₀.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rose_jax.evolution import core, queue_metric
from rose_jax.evolution import queue as ring
from rose_jax.evolution.core import (
    Counts,
    Evolver,
    Metric,
    QueueMetric,
    Rows,
    matmul,
    measure,
    move,
    transposed_matmul,
)
from rose_jax.evolution.linalg import eliminations, factor, finish_solve, half_solve, in_and_out, interleave
from rose_jax.runtime.target import target

_CHUNK = 512  # at most so many images between two calls of `refresh_sums`


def block_size() -> int:
    """Images per factorisation, a matter of speed alone.

    A CPU's time is arithmetic, which grows with the block (scripts/bench.py evolution). An accelerator's is the number of
    operations one after another, which hardly does (docs/scaling.md).
    """
    return 64 if target().platform == "cpu" else 128


class BlockedState(NamedTuple):
    """`measured` quantities are in the metric's coordinates; without a metric, as they came."""

    old: Array  # [S, d] Q_old
    residual: Array  # [S, d] Q_new - Q_old W₀, measured
    new: Array | None  # [S, d] Q_new, kept only if there is a metric, which may change
    gram: (
        queue_metric.NewGram | None
    )  # of Q_new, if that is the metric; then `metric` is None, nothing is measured
    head: Array  # int32 []: slot of the oldest pair
    sums: Array  # [d, 2d] (QᵀQ + λI | Qᵀ residual)
    age: Array  # int32 []: pairs entered since the sums were last recomputed
    peak: Array  # []: the largest tr(G) since then
    prototypes: Array  # [C, d] as given
    anchor: Array  # [C, d] p W₀ (old classes) or p (new ones), measured
    moved: Array  # [C, d] after the last update, measured
    moves: Array  # bool [C]
    seen: Array  # bool [C]
    projector: Array  # [d, d] W₀
    measured_projector: Array | None  # [d, d] W₀ @ metric.transform
    lam: Array  # [] λ, fixed at stage start
    metric: Metric | None
    counts: Counts


class Events(NamedTuple):
    """Images of a chunk, each with the pair that leaves the queue for it; zeros where none enters or leaves."""

    z: Array  # [n, d] z_new, measured
    old_in: Array  # [n, d]
    old_out: Array  # [n, d]
    residual_in: Array  # [n, d]
    residual_out: Array  # [n, d]
    stays: Array  # bool [n]: enters, and no later image of the chunk replaces it
    new_out: Array | None  # [n, d] z_new of the pair that leaves, for the queue's metric
    enters: Array  # bool [n]
    bad: Array  # bool [n]


def blocked(
    capacity: int,
    alpha: float,
    granularity: int = 1,
    ridge: float | None = None,
    block: int | None = None,
    rebuild_every: int | None = None,
) -> Evolver:
    """RoSE, exact for every image, with one Cholesky factorisation per `block` images (None: `block_size`).

    The sums are recomputed from the queue every `rebuild_every` pairs (default: three turnovers, at least 8192).
    """
    rebuild_every = rebuild_every or max(3 * capacity, 8192)

    def plan() -> tuple[int, bool, int]:
        """Images of a block, whether that is a group larger than `block`, and the most blocks of a chunk.

        A chunk has at most `capacity` images: no pair both enters and leaves in it, so that the pairs that leave can
        be read from the queue beforehand. Groups larger than that, or than a block, are one chunk each.
        """
        most = min(block_size() if block is None else block, capacity)
        if granularity > most:
            return granularity, True, 1
        width = granularity * (most // granularity)
        return width, False, max(1, min(capacity, _CHUNK) // width)

    def init(
        prototypes: Array,
        moves: Array,
        seen: Array,
        projector: Array,
        key: Array,
        metric: Metric | QueueMetric | None = None,
    ) -> BlockedState:
        dim, dtype = projector.shape[0], prototypes.dtype
        queue = ring.fill(key, prototypes, moves, projector, capacity, alpha)
        residual = jnp.zeros((capacity, dim), dtype)  # pseudo-features follow W₀ exactly
        rho, _ = core.ridge_for(capacity, dim, ridge)
        lam = rho * jnp.mean(jnp.sum(queue.old**2, axis=0))  # ρ·tr(G₀)/d
        anchor = move(prototypes, moves, projector)
        state = BlockedState(
            old=queue.old,
            residual=residual,
            new=None if metric is None else queue.new,
            gram=queue_metric.begin(queue.new, metric) if isinstance(metric, QueueMetric) else None,
            head=queue.head,
            sums=make_sums(queue.old, residual, lam),
            age=jnp.zeros((), jnp.int32),
            peak=jnp.sum(queue.old**2),
            prototypes=prototypes,
            anchor=anchor,
            moved=anchor,
            moves=moves,
            seen=seen,
            projector=projector,
            measured_projector=None,
            lam=lam,
            metric=None,
            counts=core.zero_counts(),
        )
        return with_metric(state, metric) if isinstance(metric, Metric) else state

    def chunk_size(images: int) -> int:
        """The images of a call in as few chunks as possible, all of equal size and made of whole blocks."""
        largest, _, most_blocks = plan()
        width = min(largest, granularity * -(-images // granularity))
        blocks = -(-images // width)
        chunks = -(-blocks // most_blocks)
        return -(-blocks // chunks) * width

    def update(state: BlockedState, rows: Rows) -> tuple[BlockedState, Array]:
        state, events = push(state, rows)
        largest, by_group, _ = plan()
        if by_group:
            state, scores = advance_group(state, events)
        else:
            width = min(largest, rows.valid.shape[0])
            events = jax.tree.map(lambda x: x.reshape(-1, width, *x.shape[1:]), events)
            start, carry = state, (state.sums, state.moved, state.counts, state.gram)
            carry, scores = jax.lax.scan(
                lambda carry, events: advance_block(start, carry, events, granularity), carry, events
            )
            state = state._replace(sums=carry[0], moved=carry[1], counts=carry[2], gram=carry[3])
        return refresh_sums(state, rebuild_every), scores.reshape(-1, state.seen.shape[0])

    def prototypes(state: BlockedState) -> Array:
        if state.metric is None:
            return state.moved
        return move(state.prototypes, state.moves, drift_map(state))

    def drift_map(state: BlockedState) -> Array:
        dim = state.projector.shape[0]
        cross = state.sums[:, dim:] if state.metric is None else plain_residual(state)[1]
        chol = factor(gram_of(state.sums))
        # V H as (Hᵀ V)ᵀ, because the solves act on rows
        solution = state.projector + finish_solve(chol, half_solve(chol, cross.T)).T
        return jnp.where(jnp.isfinite(solution).all(), solution, state.projector)

    def metric_now(state: BlockedState) -> Metric | None:
        return state.metric if state.gram is None else queue_metric.as_metric(state.gram.matrix)

    return Evolver(init, core.step_in_groups(update, chunk_size), drift_map, prototypes, with_metric, metric_now)


def with_metric(state: BlockedState, metric: Metric) -> BlockedState:
    """Transform the `measured` quantities to the coordinates of another metric."""
    residual, cross = plain_residual(state)
    gram = state.sums[:, : state.old.shape[1]]  # of old features, which have no metric
    state = state._replace(
        residual=matmul(residual, metric.transform),
        sums=jnp.concatenate([gram, matmul(cross, metric.transform)], axis=1),
        anchor=measure(move(state.prototypes, state.moves, state.projector), metric),
        measured_projector=matmul(state.projector, metric.transform),
        metric=metric,
    )
    moved = moved_prototypes(state, factor(gram_of(state.sums)))
    return state._replace(moved=jnp.where(jnp.isfinite(moved).all(), moved, state.anchor))


def plain_residual(state: BlockedState) -> tuple[Array, Array]:
    """Q' - Q W₀ [S, d] and Qᵀ(Q' - Q W₀) [d, d], not measured."""
    if state.new is None:
        raise ValueError("with_metric needs a state whose init was given a metric: only then z_new is kept")
    residual = state.new - matmul(state.old, state.projector)
    return residual, transposed_matmul(state.old, residual)


Carry = tuple[Array, Array, Counts, queue_metric.NewGram | None]  # sums, moved, counts, gram of the state


def push(state: BlockedState, rows: Rows) -> tuple[BlockedState, Events]:
    """Queue a chunk's entering pairs, and list the pairs that enter and leave with each image."""
    capacity = state.old.shape[0]
    z = rows.z_new
    if state.metric is None or state.measured_projector is None:
        residual_in = rows.z_new - matmul(rows.z_old, state.projector)
    else:
        z = measure(rows.z_new, state.metric)
        origin = matmul(state.metric.center[None, :], state.metric.transform)  # z + origin = z_new @ transform
        residual_in = z + origin - matmul(rows.z_old, state.measured_projector)
    slots, head = ring.slots_for(state.head, rows.enters, capacity)
    stays = slots < capacity
    events = Events(
        z=z,
        old_in=jnp.where(stays[:, None], rows.z_old, 0),
        old_out=ring.take(state.old, slots),
        residual_in=jnp.where(stays[:, None], residual_in, 0),
        residual_out=ring.take(state.residual, slots),
        stays=stays,
        new_out=ring.take(state.new, slots) if state.gram is not None and state.new is not None else None,
        enters=rows.enters,
        bad=rows.bad,
    )
    return state._replace(
        old=ring.put(state.old, slots, rows.z_old),
        residual=ring.put(state.residual, slots, residual_in),
        new=None if state.new is None else ring.put(state.new, slots, rows.z_new),
        head=head,
        age=state.age + rows.enters.sum(dtype=jnp.int32),
    ), events


def advance_block(state: BlockedState, carry: Carry, events: Events, granularity: int) -> tuple[Carry, Array]:
    """One block: the carry after its last update, and scores [b, C], each after its own image's or group's update.

    state: as it was at the start of the chunk; what blocks change of it is in the carry.
    """
    sums, last_moved, counts, gram = carry
    images, dim = events.z.shape
    # A pair enters before the one that it replaces leaves.
    old = interleave(events.old_in, events.old_out)  # U [2b, d]
    residual = interleave(events.residual_in, events.residual_out)
    signs = in_and_out(2 * images, sums.dtype)

    chol = factor(gram_of(sums))
    half = half_solve(chol, jnp.concatenate([old, jnp.where(state.moves[:, None], state.prototypes, 0)]))
    leverage = matmul(half, half[: 2 * images].T)  # A = U V Uᵀ over p V Uᵀ: [2b + C, 2b]
    shift = matmul(finish_solve(chol, half), sums[:, dim:])  # U (W - W₀) over p (W - W₀)
    moved = state.anchor + shift[2 * images :]  # M = p W [C, d]

    right = jnp.concatenate([leverage[2 * images :].T, residual - shift[: 2 * images]], axis=1)
    matrices, in_metric = [jnp.diag(signs) + leverage[: 2 * images]], None
    if gram is not None and events.new_out is not None:
        in_metric = queue_metric.begin_block(gram.matrix, events.z, events.stays, events.new_out)
        matrices.append(in_metric.matrix)
        gram = gram._replace(matrix=queue_metric.changed(gram.matrix, events.z, events.stays, events.new_out))
    eliminate, *eliminate_in_metric = eliminations(*matrices)
    right, pivots = eliminate(right)
    weights, directions = right[:, :-dim] / pivots[:, None], right[:, -dim:]  # β [2b, C], F [2b, d]

    # Pivots of entering pairs are > 0, of leaving pairs < 0. From the first group on where rounding breaks this,
    # prototypes stay as they are until the next block.
    usable = (pivots * signs > 0) & jnp.isfinite(weights).all(axis=1) & jnp.isfinite(directions).all(axis=1)
    factored = jnp.isfinite(moved).all()
    usable = usable.reshape(-1, 2 * granularity).all(axis=1) & factored
    usable = jnp.cumsum(~usable) == 0  # [groups]
    kept = jnp.repeat(usable, 2 * granularity)[:, None]
    weights, directions = jnp.where(kept, weights, 0), jnp.where(kept, directions, 0)
    moved = jnp.where(factored, moved, last_moved)

    # p W_k = M + Σ_{j ≤ k} β_j F_j, where k is the last event of the image's group
    group = jnp.arange(images) // granularity
    sees = (jnp.arange(2 * images)[None, :] // (2 * granularity) <= group[:, None]).astype(sums.dtype)
    if in_metric is None:
        dots = matmul(events.z, moved.T) + matmul(sees * matmul(events.z, directions.T), weights)
        among = matmul(directions, directions.T)
        cross = matmul(directions, moved.T) + matmul(jnp.tril(among, -1), weights)  # F_k · p W_{k-1}
        growth = weights * (2 * cross + weights * jnp.diagonal(among)[:, None])
        squares = jnp.sum(moved**2, axis=1)[None, :] + matmul(sees, growth)  # ‖p W_k‖² [b, C]
        lengths = jnp.sqrt(jnp.maximum(squares, 0))
        compare = core.compare_of(state.metric)
        scores = core.finish_scores(dots, events.z, lengths, state.seen, events.bad, compare)
    else:
        moves = queue_metric.Moves(moved, weights, directions, sees)
        scores, current = queue_metric.block_scores(in_metric, moves, *eliminate_in_metric)
        scores = core.mask_scores(scores, state.seen, events.bad)
        usable &= current.reshape(-1, granularity).all(axis=1)

    updates = events.enters.reshape(-1, granularity).any(axis=1)
    ill_posed = core.ill_posed(jnp.diagonal(chol) ** 2, state.lam)
    counts = core.count_updates(counts, updates, ~usable, ill_posed)
    sums = sums + transposed_matmul(signs[:, None] * old, jnp.concatenate([old, residual], axis=1))
    return (sums, moved + matmul(weights.T, directions), counts, gram), scores


def advance_group(state: BlockedState, events: Events) -> tuple[BlockedState, Array]:
    """One group of at least a block's size: one factorisation, and scores [g, C] after it."""
    old = jnp.concatenate([events.old_in, events.old_out])
    signed = jnp.concatenate([events.old_in, -events.old_out])
    residual = jnp.concatenate([events.residual_in, events.residual_out])
    sums = state.sums + transposed_matmul(signed, jnp.concatenate([old, residual], axis=1))
    chol = factor(gram_of(sums))
    moved = moved_prototypes(state._replace(sums=sums), chol)
    finite = jnp.isfinite(moved).all()
    moved = jnp.where(finite, moved, state.moved)
    ill_posed = core.ill_posed(jnp.diagonal(chol) ** 2, state.lam)
    counts = core.count_updates(state.counts, events.enters.any(), ~finite, ill_posed)
    gram = state.gram
    if gram is None or events.new_out is None:
        lengths = jnp.linalg.norm(moved, axis=1)[None, :]
        dots, compare = matmul(events.z, moved.T), core.compare_of(state.metric)
        scores = core.finish_scores(dots, events.z, lengths, state.seen, events.bad, compare)
    else:
        gram = gram._replace(matrix=queue_metric.changed(gram.matrix, events.z, events.stays, events.new_out))
        scores = queue_metric.scores_now(gram.matrix, events.z, moved, state.seen, events.bad)
    return state._replace(sums=sums, moved=moved, counts=counts, gram=gram), scores


def moved_prototypes(state: BlockedState, chol: Array) -> Array:
    """p W [C, d] = p W₀ + (p V) Qᵀ(Q' - Q W₀), measured, without forming W."""
    half = half_solve(chol, jnp.where(state.moves[:, None], state.prototypes, 0))
    return state.anchor + matmul(finish_solve(chol, half), state.sums[:, state.sums.shape[0] :])


def gram_of(sums: Array) -> Array:
    """G + λI [d, d], the left half of the sums."""
    return sums[:, : sums.shape[0]]


def make_sums(old: Array, residual: Array, lam: Array) -> Array:
    sums = transposed_matmul(old, jnp.concatenate([old, residual], axis=1))
    return sums + lam * jnp.eye(sums.shape[0], sums.shape[1], dtype=sums.dtype)


def refresh_sums(state: BlockedState, rebuild_every: int) -> BlockedState:
    """Recompute the sums from the queue when they are due, because adding and subtracting collects rounding errors.

    The errors are in proportion to the largest sums so far. So the sums are due at once when an outlier has left
    the queue: tr(G) fell to a fraction of its peak, or is not finite.
    """
    trace = jnp.trace(state.sums[:, : state.old.shape[1]])
    peak = jnp.maximum(state.peak, trace)
    due = (state.age >= rebuild_every) | ~(4 * trace >= peak)
    gram, new = state.gram, state.new
    if gram is not None:
        fell, gram_peak = queue_metric.fell(gram)
        due, gram = due | fell, gram._replace(peak=gram_peak)

    def rebuilt() -> tuple[Array, Array, queue_metric.NewGram | None]:
        whole = None if gram is None or new is None else queue_metric.rebuilt(new, gram)
        return make_sums(state.old, state.residual, state.lam), jnp.sum(state.old**2), whole

    sums, peak, gram = jax.lax.cond(due, rebuilt, lambda: (state.sums, peak, gram))
    return state._replace(sums=sums, age=jnp.where(due, 0, state.age), peak=peak, gram=gram)
