"""The factorisations and triangular solves behind the blocked solver."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax.linalg import triangular_solve

from rose_jax.evolution.core import matmul


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


def half_solve(chol: Array, rows: Array) -> Array:
    """rows @ C⁻ᵀ for a lower Cholesky factor C: inner products of the result are those under (C Cᵀ)⁻¹."""
    return triangular_solve(chol, rows, left_side=False, lower=True, transpose_a=True)


def finish_solve(chol: Array, half: Array) -> Array:
    """half @ C⁻¹, so that finish_solve(chol, half_solve(chol, rows)) = rows @ (C Cᵀ)⁻¹."""
    return triangular_solve(chol, half, left_side=False, lower=True)


def solve_unit_lower(lower: Array, columns: Array) -> Array:
    """L⁻¹ @ columns."""
    return triangular_solve(lower, columns, left_side=True, lower=True, unit_diagonal=True)
