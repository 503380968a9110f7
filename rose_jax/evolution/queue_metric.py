"""The queue's own metric: images and prototypes compared under the inverse Gram matrix of the queue's new features.

    s_c = z G⁻¹ p_c / (√(z G⁻¹ z) √(p_c G⁻¹ p_c)),     G = Q'ᵀQ' + λI

It needs no label, no stored covariance and no training image. G changes by one feature in and one out per image, as
the solve's own Gram matrix does, so the same leading blocks of one LDLᵀ give the metric after every image.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from rose_jax.evolution.core import Metric, QueueMetric, matmul, score_table, transposed_matmul
from rose_jax.evolution.linalg import Elimination, factor, half_solve, in_and_out, interleave


class NewGram(NamedTuple):
    """G of the queue's new features."""

    matrix: Array  # [d, d] Q'ᵀQ' + λI, of which `factor` reads the upper triangle; the other may be out of date
    lam: Array  # [] λ, fixed at stage start
    peak: Array  # []: the largest trace since the matrix was last recomputed


class Block(NamedTuple):
    """The new features that come and go with b images, in the coordinates of G = C Cᵀ at the block's start."""

    stays: Array  # bool [b], whether z enters the queue
    chol: Array  # C [d, d]
    factored: Array  # bool []: else C = I, the plain cosine
    half: Array  # [2b, d] h(x) = C⁻¹x of z over what leaves
    products: Array  # [2b, 2b] of these
    matrix: Array  # [2b, 2b] S + U G⁻¹ Uᵀ, U the features that come (s = +1) and go (-1) in turn


class Moves(NamedTuple):
    """What the solve found for a block: after k events prototypes are M + Σ_{j ≤ k} β_j F_j."""

    moved: Array  # M [C, d]
    weights: Array  # β [2b, C]
    directions: Array  # F [2b, d]
    sees: Array  # [b, 2b], 1 where the event comes before the image's score


def begin(new: Array, metric: QueueMetric) -> NewGram:
    """Of a queue's new features [S, d] at stage start: λ = ρ·tr(Q'ᵀQ')/d."""
    trace = jnp.sum(new**2)
    lam = metric.ridge * trace / new.shape[1]
    return rebuilt(new, NewGram(jnp.zeros(()), lam, trace))


def rebuilt(new: Array, gram: NewGram) -> NewGram:
    """Recomputed from the queue [S, d]."""
    matrix = transposed_matmul(new, new)
    return gram._replace(matrix=matrix + gram.lam * jnp.eye(len(matrix), dtype=new.dtype), peak=jnp.sum(new**2))


def changed(matrix: Array, z: Array, stays: Array, new_out: Array) -> Array:
    """G [d, d] after those of the rows z [n, d] that stay have come in, and others have left: its upper triangle."""
    new_in = jnp.where(stays[:, None], z, 0)
    signed, rows = jnp.concatenate([new_in, -new_out]), jnp.concatenate([new_in, new_out])
    strip, strips = max(1, len(matrix) // 4), []
    for start in range(0, len(matrix), strip):
        change = transposed_matmul(signed[:, start : start + strip], rows[:, start:])
        strips.append(matrix[start : start + strip] + jnp.pad(change, ((0, 0), (start, 0))))
    return jnp.concatenate(strips)


def fell(gram: NewGram) -> tuple[Array, Array]:
    """Whether an outlier has left, so that rounding errors of its size remain; and the largest trace so far."""
    trace = jnp.trace(gram.matrix)
    return ~(4 * trace >= gram.peak), jnp.maximum(gram.peak, trace)


def as_metric(matrix: Array) -> Metric:
    """G as it is now: x -> x C⁻ᵀ with G = C Cᵀ. The plain cosine where G has no factor."""
    dim = matrix.shape[0]
    transform = half_solve(factor(matrix), jnp.eye(dim, dtype=matrix.dtype))
    usable = jnp.isfinite(transform).all()
    return Metric(jnp.zeros(dim, matrix.dtype), jnp.where(usable, transform, jnp.eye(dim, dtype=matrix.dtype)))


def scores_now(matrix: Array, z: Array, table: Array, seen: Array, bad: Array) -> Array:
    """Scores [n, C] of images [n, d] against prototypes [C, d], all in G as it is now."""
    rows = jnp.concatenate([z, table])
    half = half_solve(factor(matrix), rows)
    half = jnp.where(jnp.isfinite(half).all(), half, rows)
    return score_table(half[: len(z)], half[len(z) :], seen, bad)


def begin_block(matrix: Array, z: Array, stays: Array, new_out: Array) -> Block:
    """z, new_out: [b, d], zero where no pair leaves."""
    chol = factor(matrix)
    factored = jnp.isfinite(chol[-1, -1])
    chol = jnp.where(factored, chol, jnp.eye(len(chol), dtype=chol.dtype))
    half = half_solve(chol, jnp.concatenate([z, new_out]))
    products = matmul(half, half.T)
    signs = in_and_out(len(half), matrix.dtype)
    return Block(
        stays,
        chol,
        factored,
        half,
        products,
        jnp.diag(signs) + _come_and_go(_come_and_go(products, stays).T, stays),
    )


def block_scores(block: Block, moves: Moves, eliminate: Elimination) -> tuple[Array, Array]:
    """Cosines [b, C] of each image after its own events, and whether G could be updated to that point, bool [b].

    With S + U G⁻¹ Uᵀ = L D Lᵀ and g(x) = L⁻¹ U G⁻¹ x, the product of x and y in the metric after k events is
    B_k(x, y) = h(x)·h(y) - Σ_{l ≤ k} g_l(x) g_l(y) / D_l.

    eliminate: of block.matrix.
    """
    images, events = moves.sees.shape
    fixed = half_solve(block.chol, jnp.concatenate([moves.directions, moves.moved]))  # F over M
    # of z, what leaves and F with F and M
    with_fixed = matmul(jnp.concatenate([block.half, fixed[:events]]), fixed.T)

    signs = in_and_out(events, fixed.dtype)
    right = jnp.concatenate([block.products[:, :images], with_fixed[:events]], axis=1)  # with z, F and M
    within, pivots = eliminate(_come_and_go(right, block.stays))
    usable = (pivots * signs > 0) & jnp.isfinite(within).all(axis=1) & block.factored
    usable = jnp.cumsum(~usable) == 0  # from the first event that rounding breaks, G stays as it is
    within = jnp.where(usable[:, None], within, 0)
    inverse = jnp.where(usable, 1 / pivots, 0)
    g_z, g_fixed = within[:, :images], within[:, images:]
    g_directions, g_moved = g_fixed[:, :events], g_fixed[:, events:]
    weights = moves.weights

    seen = moves.sees * (g_z * inverse[:, None]).T  # g_l(z_i) / D_l of the events that image i sees
    z_fixed = with_fixed[:images] - matmul(seen, g_fixed)  # B_k(z_i, F_j) and B_k(z_i, M)
    dots = z_fixed[:, events:] + matmul(moves.sees * z_fixed[:, :events], weights)
    own = jnp.diagonal(block.products)[:images] - jnp.sum(seen * g_z.T, axis=1)

    # ‖p W_k‖² in the metric after k events, event by event: first G changes, then the prototype.
    before = jnp.tril(g_directions.T * inverse[None, :])  # [k, l]: g_l(F_k) / D_l, l ≤ k
    along = with_fixed[events:] - matmul(before, g_fixed)  # B_k(F_k, F_j) and B_k(F_k, M)
    shrinks = inverse[:, None] * jnp.square(g_moved + matmul(jnp.tril(g_directions, -1), weights))
    cross = along[:, events:] + matmul(jnp.tril(along[:, :events], -1), weights)
    growth = weights * (2 * cross + weights * jnp.diagonal(along)[:, None]) - shrinks
    squares = jnp.sum(fixed[events:] ** 2, axis=1)[None, :] + matmul(moves.sees, growth)

    norms = jnp.sqrt(jnp.maximum(own, 0))[:, None] * jnp.sqrt(jnp.maximum(squares, 0))
    whole = matmul(moves.sees, (~usable)[:, None].astype(dots.dtype))[:, 0] == 0
    return dots / jnp.maximum(norms, jnp.finfo(dots.dtype).tiny), whole


def _come_and_go(x: Array, stays: Array) -> Array:
    """Rows of z where it stays, each before the one that leaves for it: z over what leaves [2b, n] -> [2b, n]."""
    images = len(stays)
    return interleave(jnp.where(stays[:, None], x[:images], 0), x[images:])
