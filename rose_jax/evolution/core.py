"""What every test-time evolution of the drift map shares: its interface, its counters, its scores.

Rows are features throughout: z_new ≈ z_old @ W, prototypes move as p @ W, and W always acts on the unmoved
table p^{t-1}, never on prototypes already moved within the stage.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)  # accelerators default to less than float32

DEFAULT_RIDGE = 1e-6
SHORT_QUEUE_RIDGE = 1e-3  # the least that float32 resolves when the queue cannot span the feature space


class Evolver(NamedTuple):
    """A test-time evolution of the drift map: pure functions over a state that holds arrays only.

    init: (prototypes [C, d], moves bool [C], seen bool [C], projector [d, d], key, metric=None) -> state
        `prototypes` are unmoved: p^{t-1} where `moves` (old classes), the new classes' means elsewhere.
    step: (state, z_old [n, d], z_new [n, d], valid bool [n], enters bool [n] | None) -> state, scores [n, C]
        Cosines (or what the metric says) after the update that includes the image itself (Alg. 2); -inf for
        classes not seen. Rows
        with valid=False are padding and change nothing. Rows with enters=False are scored but stay out of
        the queue (their z_old is not read). Rows with NaN or Inf stay out too, score NaN and are counted.
    prototypes: (state) -> [C, d]  old classes moved by the current map, the others as they were given.
    map: (state) -> [d, d]  the current drift map, formed only here.
    with_metric: (state, metric) -> state  another metric from the next image on; the state must have been
        given one by `init`. Use this, not `state._replace`: a solver may keep its sums in the metric's
        coordinates, which is what makes a metric nearly free for each image.

    `granularity` g is the number of images per update. Groups are counted from the start of each call and
    a call's ragged tail is a smaller group, so for g > 1 calls should hold a multiple of g images; for g = 1
    how a stream is cut into calls changes nothing beyond rounding.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, jax.Array]]
    prototypes: Callable[[Any], jax.Array]
    map: Callable[[Any], jax.Array]
    with_metric: Callable[[Any, Any], Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Metric:
    """An affine map x -> (x - center) @ transform of the new feature space, and how points are compared there."""

    center: jax.Array  # [d]
    transform: jax.Array  # [d, d]
    # "cosine" | "distance": minus half the squared distance, a Gaussian's log-density up to a constant
    compare: str = dataclasses.field(default="cosine", metadata={"static": True})


class Counts(NamedTuple):
    """What happened in the stream so far; int32 scalars."""

    images: jax.Array  # valid rows
    bad_rows: jax.Array  # rows with NaN or Inf: not queued, not classified
    broken_steps: jax.Array  # updates that were not finite: the previous prototypes were kept
    ill_posed_steps: jax.Array  # updates where the ridge, not the queue, decides some direction of W


class Rows(NamedTuple):
    """A call's images after screening: every entry is finite, so masks may be applied by multiplication."""

    z_old: jax.Array  # [n, d], zero where the row does not enter
    z_new: jax.Array  # [n, d], zero where the row is not scored
    enters: jax.Array  # bool [n]: goes into the queue
    bad: jax.Array  # bool [n]: valid but not finite
    valid: jax.Array  # bool [n]


def ridge_for(capacity: int, dim: int, ridge: float | None = None) -> tuple[float, str | None]:
    """The relative ridge ρ to use (λ = ρ·tr(G₀)/d), and a note for log and results where it is not the usual.

    A queue shorter than 1.5 d leaves directions undetermined, and float32 cannot resolve a small ridge there:
    the numbers stay finite and are wrong. An explicit `ridge` is always taken as it is.
    """
    short = capacity < 1.5 * dim
    if ridge is None:
        if not short:
            return DEFAULT_RIDGE, None
        return SHORT_QUEUE_RIDGE, (
            f"queue capacity {capacity} < 1.5 x dimension {dim}: ridge raised from {DEFAULT_RIDGE:g} to "
            f"{SHORT_QUEUE_RIDGE:g}, the least that float32 resolves"
        )
    if short and ridge < SHORT_QUEUE_RIDGE:
        return ridge, (
            f"queue capacity {capacity} < 1.5 x dimension {dim} with ridge {ridge:g}: float32 does not resolve "
            f"a ridge below {SHORT_QUEUE_RIDGE:g} here"
        )
    return ridge, None


def predict(scores: jax.Array) -> jax.Array:
    """Labels [n] from scores [n, C]: the nearest prototype, or -1 for an image that could not be read."""
    return jnp.where(jnp.isnan(scores).any(axis=1), -1, jnp.argmax(scores, axis=1)).astype(jnp.int32)


def zero_counts() -> Counts:
    return Counts(*(jnp.zeros((), jnp.int32) for _ in Counts._fields))


def screen(z_old, z_new, valid, enters, dtype) -> Rows:
    """Sort a call's rows into padding, bad, scored and entering ones, and blank what must not be read."""
    enters = valid if enters is None else valid & enters
    z_old, z_new = z_old.astype(dtype), z_new.astype(dtype)
    readable = jnp.isfinite(z_new).all(axis=1) & (jnp.isfinite(z_old).all(axis=1) | ~enters)
    scored, enters = valid & readable, enters & readable
    return Rows(
        z_old=jnp.where(enters[:, None], z_old, 0),
        z_new=jnp.where(scored[:, None], z_new, 0),
        enters=enters,
        bad=valid & ~readable,
        valid=valid,
    )


def count_rows(counts: Counts, rows: Rows) -> Counts:
    return counts._replace(
        images=counts.images + rows.valid.sum(dtype=jnp.int32),
        bad_rows=counts.bad_rows + rows.bad.sum(dtype=jnp.int32),
    )


def scan_groups(update, state, rows: Rows, granularity: int):
    """Run `update(state, rows of one group) -> state, scores [g, C]` over a call, g images at a time."""
    n, width = rows.z_new.shape[0], min(granularity, rows.z_new.shape[0])
    groups = -(-n // width)
    pad = groups * width - n
    grouped = jax.tree.map(
        lambda x: jnp.pad(x, ((0, pad),) + ((0, 0),) * (x.ndim - 1)).reshape(groups, width, *x.shape[1:]),
        rows,
    )
    state, scores = jax.lax.scan(update, state, grouped)
    return state, scores.reshape(groups * width, -1)[:n]


def score_table(z_new, table, seen, bad, metric: Metric | None = None) -> jax.Array:
    """Every image [n, d] against every row of the table [C, d]; -inf if unseen, NaN if unreadable."""
    if metric is not None:
        z_new, table = measure(z_new, metric), measure(table, metric)
    lengths = jnp.linalg.norm(table, axis=1)[None, :]
    return finish_scores(matmul(z_new, table.T), z_new, lengths, seen, bad, compare_of(metric))


def compare_of(metric: Metric | None) -> str:
    return "cosine" if metric is None else metric.compare


def finish_scores(dots, z, lengths, seen, bad, compare: str) -> jax.Array:
    """Scores [n, C] from dots [n, C], the images z [n, d] and the prototypes' lengths [n or 1, C], all measured."""
    if compare == "distance":
        scores = dots - (lengths**2 + jnp.sum(z**2, axis=1)[:, None]) / 2
    else:
        norms = jnp.linalg.norm(z, axis=1)[:, None] * lengths
        scores = dots / jnp.maximum(norms, jnp.finfo(dots.dtype).tiny)
    scores = jnp.where(seen[None, :], scores, -jnp.inf)
    return jnp.where(bad[:, None], jnp.nan, scores)


def transposed_matmul(left, right) -> jax.Array:
    """leftᵀ @ right for tall matrices [m, d]. XLA's CPU dot is up to twice as fast on an explicit transpose."""
    return matmul(jax.lax.optimization_barrier(left.T), right)


def measure(x, metric: Metric) -> jax.Array:
    """x [n, d] in the metric's coordinates."""
    return matmul(x - metric.center[None, :], metric.transform)


def ill_posed(pivots, lam) -> jax.Array:
    """Whether some direction of W is the ridge's doing: a pivot of G + λI below 100 λ, or below rounding."""
    rounding = pivots.shape[0] * jnp.finfo(pivots.dtype).eps * jnp.max(pivots)
    return ~(jnp.min(pivots) >= jnp.maximum(100 * lam, rounding))
