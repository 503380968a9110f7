"""The two FIFO queues of Eq. 10 as rings of fixed size, and the pseudo-features that fill them (Eq. 13)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rose_jax.evolution.core import matmul


class Queue(NamedTuple):
    old: Array  # [S, d] Q_old
    new: Array  # [S, d] Q_new
    head: Array  # int32 []: the slot of the oldest pair, where the next one goes


def pseudo_features(key: Array, prototypes: Array, moves: Array, capacity: int, alpha: float) -> Array:
    """Eq. 13: z = p_c + α·N(0, 1), c a random old class for each of `capacity` features. [S, d]

    The draw depends on the old classes alone, not on the number of rows of the table that holds them.
    """
    class_key, noise_key = jax.random.split(key)
    order = jax.random.randint(class_key, (capacity,), 0, jnp.maximum(moves.sum(), 1))
    chosen = jnp.searchsorted(jnp.cumsum(moves), order + 1)  # the (order+1)-th row that moves
    noise = jax.random.normal(noise_key, (capacity, prototypes.shape[1]), prototypes.dtype)
    return prototypes[jnp.minimum(chosen, moves.shape[0] - 1)] + alpha * noise


def fill(key: Array, prototypes: Array, moves: Array, projector: Array, capacity: int, alpha: float) -> Queue:
    """The queues at test start: pseudo-features and their images under the trained projector."""
    old = pseudo_features(key, prototypes, moves, capacity, alpha)
    return Queue(old, matmul(old, projector), jnp.zeros((), jnp.int32))


def slots_for(head: Array, enters: Array, capacity: int) -> tuple[Array, Array]:
    """The ring slot each entering row takes, and the next head.

    Rows that do not enter, or that later rows of the same call replace, get the slot `capacity`: `take` reads
    zeros there and `put` writes nothing.
    """
    rank = jnp.cumsum(enters, dtype=jnp.int32) - 1
    total = rank[-1] + 1
    stays = enters & (rank >= total - capacity)
    return jnp.where(stays, (head + rank) % capacity, capacity), (head + total) % capacity


def take(ring: Array, slots: Array) -> Array:
    """The rows that leave when `slots` are overwritten; zeros where none does."""
    return ring.at[slots].get(mode="fill", fill_value=0)


def put(ring: Array, slots: Array, rows: Array) -> Array:
    return ring.at[slots].set(rows, mode="drop")


def push(queue: Queue, z_old: Array, z_new: Array, enters: Array) -> Queue:
    """Write the entering pairs over as many of the oldest."""
    slots, head = slots_for(queue.head, enters, queue.old.shape[0])
    return Queue(put(queue.old, slots, z_old), put(queue.new, slots, z_new), head)
