"""What all updates of the drift map share: their interface, counters and scores.

Features are rows: z_new ≈ z_old @ W, and prototypes move as p @ W. W always acts on the unmoved prototypes
p^{t-1}, never on prototypes already moved within the stage.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)  # accelerators default to less than float32

DEFAULT_RIDGE = 1e-6
SHORT_QUEUE_RIDGE = 1e-3  # the least that float32 resolves when the queue cannot span the feature space

State = Any  # a NamedTuple of arrays, with at least `counts`, `seen` and `moved`


class InitFn(Protocol):
    def __call__(
        self,
        prototypes: Array,  # [C, d] unmoved: p^{t-1} of old classes, the means of new ones
        moves: Array,  # bool [C]: old classes
        seen: Array,  # bool [C]: old and new classes
        projector: Array,  # [d, d] W₀
        key: Array,
        metric: "Metric | QueueMetric | None" = None,
    ) -> State:
        """The state before the first image. A QueueMetric is for those that keep a queue."""


class StepFn(Protocol):
    def __call__(
        self,
        state: State,
        z_old: Array,  # [n, d], not read where the row does not enter
        z_new: Array,  # [n, d]
        valid: Array,  # bool [n]: False is padding, which changes nothing
        enters: Array | None = None,  # bool [n]: False is scored but not queued; None queues all
    ) -> tuple[State, Array]:
        """The new state, and scores [n, C] after the update that includes the image itself (Alg. 2).

        Classes not seen score -inf. Rows with NaN or Inf are counted, not queued, and score NaN.
        """


class Evolver(NamedTuple):
    """One way to update the drift map while test images arrive: pure functions over a state of arrays.

    A solver updates the map once per group of g images (its `granularity`). Groups are counted from the start of
    each call and the last may be smaller. For g > 1 calls should hold a multiple of g images; for g = 1 the
    division of a stream into calls changes nothing beyond rounding.
    """

    init: InitFn
    step: StepFn
    map: Callable[[State], Array]  # [d, d]: the current drift map, formed only here
    # [C, d]: old classes moved by the current map, the others as given
    prototypes: Callable[[State], Array] = lambda state: state.moved
    # Another metric from the next image on, for a state whose `init` got one. A solver may keep its sums in the
    # metric's coordinates, and then has to do more.
    with_metric: Callable[[State, "Metric"], State] = lambda state, metric: state._replace(metric=metric)
    # The metric that the next image would be scored in, None without one. A QueueMetric is formed only here.
    metric: Callable[[State], "Metric | None"] = lambda state: state.metric


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Metric:
    """An affine map x -> (x - center) @ transform of the new feature space, and how points are compared there."""

    center: Array  # [d]
    transform: Array  # [d, d]
    # "cosine" | "distance": minus half the squared distance, a Gaussian's log-density up to a constant
    compare: str = dataclasses.field(default="cosine", metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QueueMetric:
    """The inverse Gram matrix of the queue's new features, as they come and go (evolution/queue_metric.py)."""

    ridge: Array  # [] ρ of λ = ρ·tr(Q'ᵀQ')/d, for the queue as it is filled at stage start


class Counts(NamedTuple):
    """What happened in the stream so far; int32 scalars."""

    images: Array  # valid rows
    bad_rows: Array  # rows with NaN or Inf: not queued, not classified
    broken_steps: Array  # updates that were not finite: the previous prototypes were kept
    ill_posed_steps: Array  # updates where the ridge, not the queue, decides some direction of W


class Rows(NamedTuple):
    """Images after screening: every entry is finite, so masks may be applied by multiplication."""

    z_old: Array  # [n, d], zero where the row does not enter
    z_new: Array  # [n, d], zero where the row is not scored
    enters: Array  # bool [n]: goes into the queue
    bad: Array  # bool [n]: valid but not finite
    valid: Array  # bool [n]


def ridge_for(capacity: int, dim: int, ridge: float | None = None) -> tuple[float, str | None]:
    """The relative ridge ρ to use (λ = ρ·tr(G₀)/d), and a note for log and results if it needs one.

    A queue shorter than 1.5 d leaves directions undetermined. With a small ridge, float32 gives finite but
    wrong numbers there. An explicit `ridge` is never changed.
    """
    if capacity >= 1.5 * dim:
        return DEFAULT_RIDGE if ridge is None else ridge, None
    short, least = f"queue capacity {capacity} < 1.5 x dimension {dim}", SHORT_QUEUE_RIDGE
    if ridge is None:
        return least, f"{short}: ridge raised from {DEFAULT_RIDGE:g} to {least:g}, the least that float32 resolves"
    if ridge < least:
        return ridge, f"{short} with ridge {ridge:g}: float32 does not resolve a ridge below {least:g} here"
    return ridge, None


def predict(scores: Array) -> Array:
    """Labels [n] from scores [n, C]: the class of the highest score, or -1 for a row with NaN."""
    return jnp.where(jnp.isnan(scores).any(axis=1), -1, jnp.argmax(scores, axis=1)).astype(jnp.int32)


def padded_calls(rows: Any, size: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """A stream [n, d] on the host in calls of one size: where each starts, its rows [size, d], which are no padding."""
    for start in range(0, len(rows), max(size, 1)):
        some = np.asarray(rows[start : start + size])
        yield start, np.pad(some, ((0, size - len(some)), (0, 0))), np.arange(size) < len(some)


def zero_counts() -> Counts:
    return Counts(*(jnp.zeros((), jnp.int32) for _ in Counts._fields))


def count_updates(counts: Counts, updates: Array, broken: Array, ill_posed: Array | bool = False) -> Counts:
    """The counts after one update or several (bool [] or [n]): which took place, not finite, ill-posed."""
    return counts._replace(
        broken_steps=counts.broken_steps + (updates & broken).sum(dtype=jnp.int32),
        ill_posed_steps=counts.ill_posed_steps + (updates & ill_posed).sum(dtype=jnp.int32),
    )


def screen(z_old: Array, z_new: Array, valid: Array, enters: Array | None, dtype: jnp.dtype) -> Rows:
    """Find the rows that are bad, scored and entering, and zero what must not be read."""
    enters = valid if enters is None else valid & enters
    z_old, z_new = z_old.astype(dtype), z_new.astype(dtype)
    finite = jnp.isfinite(z_new).all(axis=1) & (jnp.isfinite(z_old).all(axis=1) | ~enters)
    scored, enters = valid & finite, enters & finite
    return Rows(
        z_old=jnp.where(enters[:, None], z_old, 0),
        z_new=jnp.where(scored[:, None], z_new, 0),
        enters=enters,
        bad=valid & ~finite,
        valid=valid,
    )


def step_in_groups(update: Callable[[Any, Rows], tuple[State, Array]], width: Callable[[int], int]) -> StepFn:
    """A solver's `step`: counts n images and gives them to `update` in groups of width(n), the last padded."""

    def step(
        state: State, z_old: Array, z_new: Array, valid: Array, enters: Array | None = None
    ) -> tuple[State, Array]:
        n, dtype = z_new.shape[0], state.moved.dtype
        if n == 0:
            return state, jnp.zeros((0, state.seen.shape[0]), dtype)
        rows = screen(z_old, z_new, valid, enters, dtype)
        counts = state.counts._replace(
            images=state.counts.images + rows.valid.sum(dtype=jnp.int32),
            bad_rows=state.counts.bad_rows + rows.bad.sum(dtype=jnp.int32),
        )
        size = width(n)
        groups = -(-n // size)

        def split(x: Array) -> Array:
            padded = jnp.pad(x, ((0, groups * size - n),) + ((0, 0),) * (x.ndim - 1))
            return padded.reshape(groups, size, *x.shape[1:])

        state, scores = jax.lax.scan(update, state._replace(counts=counts), jax.tree.map(split, rows))
        return state, scores.reshape(groups * size, -1)[:n]

    return step


def move(prototypes: Array, moves: Array, drift_map: Array) -> Array:
    """Prototypes [C, d] times the map [d, d] where `moves` [C], unchanged elsewhere."""
    return jnp.where(moves[:, None], matmul(prototypes, drift_map), prototypes)


def score_table(
    z_new: Array, table: Array, seen: Array, bad: Array | None = None, metric: Metric | None = None
) -> Array:
    """Scores [n, C] of images [n, d] against a table [C, d], cosines without a metric.

    -inf where a class is not seen, NaN where an image is bad; None says that none is.
    """
    if metric is not None:
        z_new, table = measure(z_new, metric), measure(table, metric)
    lengths = jnp.linalg.norm(table, axis=1)[None, :]
    return finish_scores(matmul(z_new, table.T), z_new, lengths, seen, bad, compare_of(metric))


def compare_of(metric: Metric | None) -> str:
    return "cosine" if metric is None else metric.compare


def finish_scores(dots: Array, z: Array, lengths: Array, seen: Array, bad: Array | None, compare: str) -> Array:
    """Scores [n, C] from dots [n, C], the images z [n, d] and the prototypes' lengths [n or 1, C], all measured."""
    if compare == "distance":
        scores = dots - (lengths**2 + jnp.sum(z**2, axis=1)[:, None]) / 2
    else:
        norms = jnp.linalg.norm(z, axis=1)[:, None] * lengths
        scores = dots / jnp.maximum(norms, jnp.finfo(dots.dtype).tiny)
    return mask_scores(scores, seen, bad)


def mask_scores(scores: Array, seen: Array, bad: Array | None) -> Array:
    """-inf where a class is not seen, NaN where an image is bad; None says that none is."""
    scores = jnp.where(seen[None, :], scores, -jnp.inf)
    return scores if bad is None else jnp.where(bad[:, None], jnp.nan, scores)


def transposed_matmul(left: Array, right: Array) -> Array:
    """leftᵀ @ right for tall matrices [m, d]. XLA's CPU dot is up to twice as fast on an explicit transpose."""
    return matmul(jax.lax.optimization_barrier(left.T), right)


def measure(x: Array, metric: Metric) -> Array:
    """x [n, d] in the metric's coordinates."""
    return matmul(x - metric.center[None, :], metric.transform)


def ill_posed(pivots: Array, lam: Array) -> Array:
    """Whether the ridge decides some direction of W: a pivot of G + λI is below 100 λ, or below rounding.

    So it is where λ has overflowed (a huge α): everything is finite then, and W stays at W₀.
    """
    rounding = pivots.shape[0] * jnp.finfo(pivots.dtype).eps * jnp.max(pivots)
    return ~((jnp.min(pivots) >= jnp.maximum(100 * lam, rounding)) & jnp.isfinite(lam))
