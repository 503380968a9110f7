"""The two FIFO queues of Eq. 10 as rings of fixed size, and the pseudo-features that fill them (Eq. 13)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rose_jax.evolution.core import matmul


class Queue(NamedTuple):
    old: jax.Array  # [S, d] Q_old
    new: jax.Array  # [S, d] Q_new
    head: jax.Array  # int32 []: the slot of the oldest pair, where the next one goes


def pseudo_features(key, prototypes, moves, capacity: int, alpha: float) -> jax.Array:
    """Eq. 13: z = p_c + α·N(0, 1), c a random old class for each of `capacity` features. [S, d]

    What is drawn depends on the old classes alone, not on the size of the table that holds them.
    """
    class_key, noise_key = jax.random.split(key)
    order = jax.random.randint(class_key, (capacity,), 0, jnp.maximum(moves.sum(), 1))
    chosen = jnp.searchsorted(jnp.cumsum(moves), order + 1)  # the (order+1)-th row that moves
    noise = jax.random.normal(noise_key, (capacity, prototypes.shape[1]), prototypes.dtype)
    return prototypes[jnp.minimum(chosen, moves.shape[0] - 1)] + alpha * noise


def fill(key, prototypes, moves, projector, capacity: int, alpha: float) -> Queue:
    """The queues at test start: pseudo-features and their images under the trained projector."""
    old = pseudo_features(key, prototypes, moves, capacity, alpha)
    return Queue(old, matmul(old, projector), jnp.zeros((), jnp.int32))


def slots_for(head, enters, capacity: int) -> tuple[jax.Array, jax.Array]:
    """The ring slot each entering row takes, and the next head.

    Rows that do not enter, or that later rows of the same call push out again, get the slot `capacity`,
    which `take` reads as zeros and `put` drops.
    """
    rank = jnp.cumsum(enters, dtype=jnp.int32) - 1
    total = rank[-1] + 1
    stays = enters & (rank >= total - capacity)
    return jnp.where(stays, (head + rank) % capacity, capacity), (head + total) % capacity


def take(ring, slots) -> jax.Array:
    """What leaves when `slots` are overwritten; zeros where nothing does."""
    return ring.at[slots].get(mode="fill", fill_value=0)


def put(ring, slots, rows) -> jax.Array:
    return ring.at[slots].set(rows, mode="drop")


def push(queue: Queue, z_old, z_new, enters) -> Queue:
    """Append the entering pairs and pop as many of the oldest."""
    slots, head = slots_for(queue.head, enters, queue.old.shape[0])
    return Queue(put(queue.old, slots, z_old), put(queue.new, slots, z_new), head)
