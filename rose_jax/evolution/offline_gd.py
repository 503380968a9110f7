"""Gradient descent on all pairs of a stage until it converges: the paper's oracle, method `gd_oracle`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from rose_jax.evolution.core import matmul


class OfflineInfo(NamedTuple):
    loss: float  # mean((z_old W − z_new)²) of the map that is returned
    closed_form_loss: float  # of the least-squares solution, in float64
    gap: float  # loss / closed_form_loss − 1
    steps: int
    converged: bool  # False: stopped by max_steps


def offline_gd(
    z_old: Any,
    z_new: Any,
    start: Any,
    *,
    lr: float = 1e-3,
    tolerance: float = 1e-4,
    window: int = 100,
    max_steps: int = 20_000,
) -> tuple[Array, OfflineInfo]:
    """Full-batch Adam on mean((z_old W − z_new)²) over all pairs [n, d], from W = start [d, d].

    Converged means: over the last `window` steps the loss fell by less than the fraction `tolerance` of itself.
    Rows with NaN or Inf are left out.
    """
    z_old, z_new = np.asarray(z_old, np.float64), np.asarray(z_new, np.float64)
    finite = np.isfinite(z_old).all(axis=1) & np.isfinite(z_new).all(axis=1)
    z_old, z_new = z_old[finite], z_new[finite]
    residual = z_new - z_old @ np.asarray(start, np.float64)
    gram, cross = z_old.T @ z_old, z_old.T @ residual
    total, entries = float(np.sum(residual**2)), max(residual.size, 1)

    scaled = (jnp.asarray(sums / entries, jnp.float32) for sums in (gram, cross, total))
    change, steps, converged = _descend(*scaled, lr, tolerance, window, max_steps)

    def loss(change: np.ndarray) -> float:
        return float(np.mean((z_old @ change - residual) ** 2)) if residual.size else 0.0

    best = loss(np.linalg.lstsq(gram, cross, rcond=None)[0])
    reached = loss(np.asarray(change, np.float64))
    gap = reached / best - 1 if best > 0 else 0.0
    info = OfflineInfo(reached, best, gap, int(steps), bool(converged))
    return jnp.asarray(start, jnp.float32) + change, info


@jax.jit
def _descend(
    gram: Array, cross: Array, offset: Array, lr: float, tolerance: float, window: int, max_steps: int
) -> tuple[Array, Array, Array]:
    """Adam on the change Δ = W − start: loss = offset − 2⟨Δ, H⟩ + ⟨Δ, GΔ⟩, already divided by n·d."""
    adam = optax.adam(lr)

    def advance(carry: Any) -> Any:
        change, state, step, mark, _ = carry
        pulled = matmul(gram, change)
        loss = offset + jnp.sum(change * (pulled - 2 * cross))
        due = step % window == 0
        converged = due & (mark - loss < tolerance * jnp.abs(loss))
        update, state = adam.update(2 * (pulled - cross), state)
        # The loss is the map's before this step: if that has converged, it stays.
        change = jnp.where(converged, change, change + update)
        return change, state, step + jnp.where(converged, 0, 1), jnp.where(due, loss, mark), converged

    def unfinished(carry: Any) -> Array:
        return (carry[2] < max_steps) & ~carry[4]

    zero = jnp.zeros_like(gram)
    carry = (zero, adam.init(zero), jnp.int32(0), jnp.float32(jnp.inf), jnp.asarray(False))
    change, _, steps, _, converged = jax.lax.while_loop(unfinished, advance, carry)
    return change, steps, converged
