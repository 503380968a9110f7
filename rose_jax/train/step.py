"""The one jitted training step: gather, augment, differentiate, update. Pure, and the same on any mesh."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.stages import Wrapped

from rose_jax.data.pipeline import Feed
from rose_jax.data.resident import gather
from rose_jax.runtime.sharding import Layout
from rose_jax.types import Array, Batch, LossParts, Objective, PyTree, Snapshot, Task

_AUGMENT, _LOSS, _BEGIN = 1, 2, 0
FINISH = 3  # of the passes that end a task


class TrainState(NamedTuple):
    trainable: dict[str, PyTree]
    kept: PyTree  # of LossParts
    opt_state: PyTree
    step: jax.Array  # int32 [], within the task


def task_key(seed: Array | int, task: jax.Array, purpose: int = _BEGIN) -> jax.Array:
    """Randomness is addressed, never stored: fold_in(key, purpose, task, step)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), task)


def make_begin(objective: Objective) -> Callable[[Snapshot | None, Task], TrainState]:
    """(prev | None, task) -> TrainState at step 0."""

    @jax.jit
    def begin(prev: Snapshot | None, task: Task) -> TrainState:
        trainable, kept = objective.begin(task_key(task.seed, task.number), prev, task)
        opt_state = objective.optimizer(jnp.zeros(()), task, trainable).init(trainable)
        return TrainState(trainable, kept, opt_state, jnp.zeros((), jnp.int32))

    return begin


def make_step(objective: Objective, layout: Layout) -> Wrapped:
    """(state, prev | None, data | None, feed, lr [K], task) -> state, terms of the last step run.

    jit specialises it twice: for the first task (prev is None) and for all later ones.
    """

    def update(
        state: TrainState,
        prev: Snapshot | None,
        images: jax.Array,
        labels: jax.Array,
        mask: jax.Array,
        lr: jax.Array,
        task: Task,
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        images, labels, mask = layout.constrain((images, labels, mask))
        augment_key = jax.random.fold_in(task_key(task.seed, task.number, _AUGMENT), state.step)
        loss_key = jax.random.fold_in(task_key(task.seed, task.number, _LOSS), state.step)
        batch = objective.batch(augment_key, images, labels, mask, task)
        grads, parts = _gradient(objective, state, prev, batch, task, loss_key)
        transform = objective.optimizer(lr, task, state.trainable)
        updates, opt_state = transform.update(grads, state.opt_state, state.trainable)
        terms = parts.terms | {
            "gradient_norm": _norm(grads),
            "update_norm": _norm(updates),
        }
        trainable = optax.apply_updates(state.trainable, updates)
        state = TrainState(trainable, parts.kept, opt_state, state.step + 1)
        # Lest what an objective keeps of a batch stays split and the next call needs another executable.
        return jax.lax.with_sharding_constraint(state, layout.replicated), terms

    def step(
        state: TrainState,
        prev: Snapshot | None,
        data: dict[str, jax.Array] | None,
        feed: Feed,
        lr: jax.Array,
        task: Task,
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        if data is None or feed.rows is None:
            assert feed.images is not None
            assert feed.labels is not None
            return update(state, prev, feed.images, feed.labels, feed.mask, lr[0], task)
        images, labels, rows = data["images"], data["labels"], feed.rows

        def one(i: jax.Array | int, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
            chosen = rows[i]
            return update(state, prev, gather(images, chosen), labels[chosen], feed.mask, lr[i], task)

        if len(rows) == 1:  # bare: on the CPU a convolution's gradient is ruinous inside a loop body
            return one(0, state)
        body = lambda i, carry: one(i, carry[0])  # noqa: E731
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one, 0, state)[1])
        return jax.lax.fori_loop(0, feed.steps, body, (state, zeros))

    return jax.jit(step, donate_argnums=0)


def _gradient(
    objective: Objective, state: TrainState, prev: Snapshot | None, batch: Batch, task: Task, key: jax.Array
) -> tuple[dict[str, PyTree], LossParts]:
    def loss(trainable: dict[str, PyTree]) -> tuple[jax.Array, LossParts]:
        total, parts = objective.loss(trainable, state.kept, prev, batch, task, key)
        return total, parts._replace(terms={"loss": total} | parts.terms, pair=None)

    return jax.grad(loss, has_aux=True)(state.trainable)


def _norm(tree: PyTree) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
