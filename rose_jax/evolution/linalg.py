"""The factorisations and triangular solves behind the blocked solver."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax.linalg import triangular_solve
from jax.typing import DTypeLike

from rose_jax.evolution.core import matmul
from rose_jax.runtime.target import target

BASE = 8  # blocks of so many rows are eliminated row by row


Elimination = Callable[[Array], tuple[Array, Array]]  # right [m, c] -> L⁻¹ @ right [m, c], the pivots D [m]


def eliminations(*matrices: Array) -> list[Elimination]:
    """For each symmetric matrix [m, m], of its unpivoted LDLᵀ. A CPU factors all in one loop: its steps are short.

    Without pivoting, the leading rows of both results are those of the leading blocks. All leading blocks must be
    non-singular; from the first that is not, rows are Inf or NaN.
    """
    if target().platform != "cpu":
        return [functools.partial(eliminate_by_halves, matrix) for matrix in matrices]
    if len(matrices) == 1:
        return [functools.partial(_finish, *ldl(*matrices))]
    lower, pivots = jax.vmap(ldl)(jnp.stack(matrices))
    return [functools.partial(_finish, lower[i], pivots[i]) for i in range(len(matrices))]


def _finish(lower: Array, pivots: Array, right: Array) -> tuple[Array, Array]:
    return triangular_solve(lower, right, left_side=True, lower=True, unit_diagonal=True), pivots


def eliminate_by_halves(matrix: Array, right: Array) -> tuple[Array, Array]:
    """`Elimination` in log₂(m / BASE) steps over all blocks at once, for machines on which each small operation is dear.

    With X = A₁₁⁻¹ A₁₂, the lower half of a block is left with A₂₂ - Xᵀ A₁₂ and R₂ - Xᵀ R₁, which are what elimination of the
    upper half leaves it with. Then the two halves have nothing more to do with each other, and are halved alike.
    """
    size, columns = right.shape
    blocks = 2 ** max(0, math.ceil(math.log2(max(size, 1) / BASE)))
    side = blocks * BASE
    a = jnp.eye(side, dtype=matrix.dtype).at[:size, :size].set(matrix)[None]  # [blocks so far, side, side]
    r = jnp.pad(right, ((0, side - size), (0, 0)))[None]
    while side > BASE:
        side //= 2
        upper, across, lower = a[:, :side, :side], a[:, :side, side:], a[:, side:, side:]
        x = jnp.swapaxes(jnp.linalg.solve(upper, across), 1, 2)
        a = jnp.stack([upper, lower - matmul(x, across)], axis=1).reshape(-1, side, side)
        r = jnp.stack([r[:, :side], r[:, side:] - matmul(x, r[:, :side])], axis=1).reshape(-1, side, columns)
    # Row by row on (a | I), which leaves (D Lᵀ | L⁻¹): the right side is many times as wide.
    both = jnp.concatenate([a, jnp.broadcast_to(jnp.eye(BASE, dtype=a.dtype), a.shape)], axis=2)
    below = np.arange(BASE)[None, :, None]
    for j in range(BASE - 1):
        row = both[:, j : j + 1]
        both = both - jnp.where(below > j, both[:, :, j : j + 1] / row[:, :, j : j + 1] * row, 0)
    pivots = jnp.sum(jnp.where(np.eye(BASE, dtype=bool)[None], both[:, :, :BASE], 0), axis=2)
    return matmul(both[:, :, BASE:], r).reshape(-1, columns)[:size], pivots.reshape(-1)[:size]


def in_and_out(events: int, dtype: DTypeLike) -> Array:
    """S [events]: 1, -1, 1, ... of rows that come and go in turn, as `interleave` sets them."""
    return jnp.where(jnp.arange(events) % 2 == 0, 1, -1).astype(dtype)


def interleave(first: Array, second: Array) -> Array:
    """[2n, d]: first[0], second[0], first[1], ... A TPU is quicker at a gather of rows than at a reshape of two axes."""
    order = np.arange(2 * len(first)).reshape(2, -1).T.reshape(-1)
    return jnp.concatenate([first, second]).at[order].get(mode="promise_in_bounds", unique_indices=True)


def ldl(matrix: Array, panel: int = 16) -> tuple[Array, Array]:
    """Unpivoted LDLᵀ of a symmetric matrix [m, m]: unit lower L [m, m] and the pivots D [m].

    Without pivoting, leading blocks of the factors are the factors of the leading blocks. All leading blocks must
    be non-singular; from the first that is not, rows are Inf or NaN.
    `panel` rows are eliminated at a time, so that most of the work is a matmul.
    """
    size = matrix.shape[0]
    panels = -(-size // panel)
    padded = panels * panel
    upper = jnp.eye(padded, dtype=matrix.dtype).at[:size, :size].set(matrix)
    within, columns = jnp.arange(panel), jnp.arange(padded)

    def eliminate_panel(p: Array, upper: Array) -> Array:
        start = p * panel
        strip = jax.lax.dynamic_slice_in_dim(upper, start, panel)  # [panel, padded]

        def eliminate(j: Array, strip: Array) -> Array:
            row = strip[j]
            square = jax.lax.dynamic_slice_in_dim(row, start, panel)  # by symmetry the row is the column
            multipliers = jnp.where(within > j, square / square[j], 0)
            return strip - multipliers[:, None] * row[None, :]

        strip = jax.lax.fori_loop(0, panel, eliminate, strip)
        pivots = jnp.diagonal(jax.lax.dynamic_slice_in_dim(strip, start, panel, axis=1))
        later = jnp.where(columns[None, :] >= start + panel, strip / pivots[:, None], 0)
        upper = upper - matmul(later.T, strip)
        return jax.lax.dynamic_update_slice_in_dim(upper, strip, start, axis=0)

    upper = jax.lax.fori_loop(0, panels, eliminate_panel, upper)[:size, :size]
    pivots = jnp.diagonal(upper)
    return jnp.triu(upper / pivots[:, None], 1).T + jnp.eye(size, dtype=matrix.dtype), pivots


def factor(matrix: Array) -> Array:
    """The lower Cholesky factor C of a symmetric matrix, read from its upper triangle; NaN if that is not positive definite.

    What stands above C's diagonal means nothing: the solves below do not read it, and to clear it takes a CPU a fifth
    of the time of the factorisation.
    """
    return _by_columns(jax.lax.linalg.cholesky_p.bind(matrix.T))


def half_solve(chol: Array, rows: Array) -> Array:
    """rows @ C⁻ᵀ for a lower Cholesky factor C: inner products of the result are those under (C Cᵀ)⁻¹."""
    return _by_columns(triangular_solve(chol, rows.T, left_side=True, lower=True)).T


def finish_solve(chol: Array, half: Array) -> Array:
    """half @ C⁻¹, so that finish_solve(chol, half_solve(chol, rows)) = rows @ (C Cᵀ)⁻¹."""
    return _by_columns(triangular_solve(chol, half.T, left_side=True, lower=True, transpose_a=True)).T


def _by_columns(matrix: Array) -> Array:
    """The same, kept as LAPACK leaves it: without the barrier XLA turns matrices round between one call and the next."""
    return jax.lax.optimization_barrier(matrix.T).T if target().platform == "cpu" else matrix
