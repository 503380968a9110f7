"""torch's optimizers: weight decay is L2 added to the gradient, before momentum or Adam's moments."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from rose_jax.errors import unknown
from rose_jax.types import Task


def network(kind: str, lr: Any, weight_decay: Any, momentum: float) -> optax.GradientTransformation:
    """kind: "sgd" (with momentum) or "adam"."""
    if kind == "sgd":
        precondition: optax.GradientTransformation = optax.trace(momentum)
    elif kind == "adam":
        precondition = optax.scale_by_adam()
    else:
        raise unknown("optimizer", kind, ("sgd", "adam"))
    return optax.chain(optax.add_decayed_weights(weight_decay), precondition, optax.scale_by_learning_rate(lr))


def first_and_later(first: str, later: str, lr: Any, task: Task, momentum: float) -> optax.GradientTransformation:
    """One kind for the first task, another for all later ones.

    Which of them it is, is traced: where the kinds differ, both are computed and one is taken.
    """
    kinds = [network(kind, lr, task.weight_decay, momentum) for kind in dict.fromkeys((first, later))]
    if len(kinds) == 1:
        return kinds[0]

    def init(params: Any) -> Any:
        return [kind.init(params) for kind in kinds]

    def update(grads: Any, states: Any, params: Any = None) -> tuple[Any, Any]:
        both = [kind.update(grads, state, params) for kind, state in zip(kinds, states, strict=True)]
        chosen = jax.tree.map(lambda a, b: jnp.where(task.number == 0, a, b), both[0][0], both[1][0])
        return chosen, [state for _, state in both]

    return optax.GradientTransformation(init, update)
