"""The one jitted training step: gather, augment, differentiate, update. Pure, and the same on any mesh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rose_jax.data.resident import gather
from rose_jax.runtime.sharding import Layout
from rose_jax.types import Objective, Snapshot, Task

_AUGMENT, _LOSS, _BEGIN = 1, 2, 0


class TrainState(NamedTuple):
    trainable: Any
    batch_stats: Any
    opt_state: Any
    step: jax.Array  # int32 [], within the task


class Feed(NamedTuple):
    """One call's batches. Resident data: rows to gather. Streamed data: the images themselves, K = 1."""

    rows: Any  # int32 [K, B] into the resident images
    images: Any  # uint8 [B, h, w, 3]
    labels: Any  # int32 [B]
    mask: jax.Array  # bool [B]
    lr: jax.Array  # float32 [K]
    steps: jax.Array  # int32 [], how many of the K to run


def task_key(seed: int, task: jax.Array, purpose: int = _BEGIN) -> jax.Array:
    """Randomness is addressed, never stored: fold_in(key, purpose, task, step)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), task)


def make_begin(objective: Objective, seed: int) -> Callable:
    """(prev | None, task) -> TrainState at step 0."""

    @jax.jit
    def begin(prev: Snapshot | None, task: Task) -> TrainState:
        trainable, batch_stats = objective.begin(task_key(seed, task.index), prev, task)
        opt_state = objective.optimizer(jnp.zeros(()), task, trainable).init(trainable)
        return TrainState(trainable, batch_stats, opt_state, jnp.zeros((), jnp.int32))

    return begin


def make_step(objective: Objective, layout: Layout, seed: int) -> Any:
    """(state, prev | None, data | None, feed, task) -> state, terms of the last step run.

    jit specialises it twice: for the first task (prev is None) and for all later ones.
    """

    def update(state: TrainState, prev, images, labels, mask, lr, task: Task):
        images, labels, mask = layout.constrain((images, labels, mask))
        augment_key = jax.random.fold_in(task_key(seed, task.index, _AUGMENT), state.step)
        loss_key = jax.random.fold_in(task_key(seed, task.index, _LOSS), state.step)
        batch = objective.batch(augment_key, images, labels, mask, task)
        grads, (batch_stats, terms) = _gradient(objective, state, prev, batch, task, loss_key)
        transform = objective.optimizer(lr, task, state.trainable)
        updates, opt_state = transform.update(grads, state.opt_state, state.trainable)
        terms = terms | {
            "gradient_norm": _norm(grads),
            "update_norm": _norm(updates),
        }
        trainable = optax.apply_updates(state.trainable, updates)
        state = TrainState(trainable, batch_stats, opt_state, state.step + 1)
        # Lest what an objective keeps of a batch stays split and the next call needs another executable.
        return jax.lax.with_sharding_constraint(state, layout.replicated), terms

    def step(state: TrainState, prev, data, feed: Feed, task: Task):
        if feed.rows is None:
            return update(state, prev, feed.images, feed.labels, feed.mask, feed.lr[0], task)

        def one(i, state):
            rows = feed.rows[i]
            images = gather(data["images"], rows)
            return update(state, prev, images, data["labels"][rows], feed.mask, feed.lr[i], task)

        if len(feed.rows) == 1:  # bare: on the CPU a convolution's gradient is ruinous inside a loop body
            return one(0, state)
        body = lambda i, carry: one(i, carry[0])  # noqa: E731
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one, 0, state)[1])
        return jax.lax.fori_loop(0, feed.steps, body, (state, zeros))

    return jax.jit(step, donate_argnums=0)


def _gradient(objective: Objective, state: TrainState, prev, batch, task: Task, key):
    def loss(trainable):
        total, (batch_stats, terms) = objective.loss(trainable, state.batch_stats, prev, batch, task, key)
        return total, (batch_stats, {"loss": total} | terms)

    return jax.grad(loss, has_aux=True)(state.trainable)


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
