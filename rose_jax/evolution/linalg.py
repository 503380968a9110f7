"""The factorisations and triangular solves behind the blocked solver."""

import jax
import jax.numpy as jnp
from jax.lax.linalg import triangular_solve

from rose_jax.evolution.core import matmul


def ldl(matrix, panel: int = 16) -> tuple[jax.Array, jax.Array]:
    """Unpivoted LDLᵀ of a symmetric matrix [m, m]: unit lower L [m, m] and the pivots D [m].

    Leading blocks of the factors are the factors of leading blocks, which pivoting would destroy. It needs
    every leading block to be non-singular; a block that is not leaves Inf or NaN from its row on.
    Elimination goes `panel` rows at a time, so that most of the work is a matmul.
    """
    size = matrix.shape[0]
    panels = -(-size // panel)
    padded = panels * panel
    upper = jnp.eye(padded, dtype=matrix.dtype).at[:size, :size].set(matrix)
    within, columns = jnp.arange(panel), jnp.arange(padded)

    def eliminate_panel(p, upper):
        start = p * panel
        strip = jax.lax.dynamic_slice_in_dim(upper, start, panel)  # [panel, padded]

        def eliminate(j, strip):
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


def half_solve(chol, rows) -> jax.Array:
    """rows @ C⁻ᵀ for a lower Cholesky factor C: inner products of the result are those under (C Cᵀ)⁻¹."""
    return triangular_solve(chol, rows, left_side=False, lower=True, transpose_a=True)


def finish_solve(chol, half) -> jax.Array:
    """half @ C⁻¹, so that finish_solve(chol, half_solve(chol, rows)) = rows @ (C Cᵀ)⁻¹."""
    return triangular_solve(chol, half, left_side=False, lower=True)


def solve_unit_lower(lower, columns) -> jax.Array:
    """L⁻¹ @ columns."""
    return triangular_solve(lower, columns, left_side=True, lower=True, unit_diagonal=True)
