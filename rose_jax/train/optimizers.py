"""torch's optimizers: weight decay is L2 added to the gradient, before momentum or Adam's moments."""

from typing import Any

import optax

from rose_jax.errors import unknown


def network(kind: str, lr: Any, weight_decay: Any, momentum: float) -> optax.GradientTransformation:
    """kind: "sgd" (with momentum) or "adam"."""
    if kind == "sgd":
        precondition: optax.GradientTransformation = optax.trace(momentum)
    elif kind == "adam":
        precondition = optax.scale_by_adam()
    else:
        raise unknown("optimizer", kind, ("sgd", "adam"))
    return optax.chain(optax.add_decayed_weights(weight_decay), precondition, optax.scale_by_learning_rate(lr))
