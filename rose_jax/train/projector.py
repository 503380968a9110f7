"""RoSE's projector (Eq. 7), trained beside any objective that has a teacher, without a gradient into its encoder."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.train import losses
from rose_jax.types import (
    Batch,
    Key,
    LossResult,
    Objective,
    Parts,
    Prev,
    PyTree,
    Snapshot,
    StageView,
    Task,
    Trainable,
)

NO_PROJECTOR = np.zeros((0, 0))  # in the snapshot of an objective before `with_projector` fills its own in


def with_projector(objective: Objective, parts: Parts) -> Objective:
    """The objective, and in the same step one of Adam on the projector."""
    options, dim = parts.config.projector, parts.encoder.feature_dim

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        trainable, kept = objective.begin(key, prev, task)
        return trainable | {"projector": init_projector(options.init, jax.random.split(key, 3)[2], dim)}, kept

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        total, parts = objective.loss(_others(trainable), kept, prev, batch, task, key)
        if parts.pair is None:
            return total, parts
        term = losses.projection(*parts.pair[:2], trainable["projector"], parts.pair.mask, options.loss)
        return total + term, parts._replace(terms=parts.terms | {"projector": term})

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        snapshot = objective.finish(_others(trainable), kept, prev, view, task)
        return snapshot._replace(projector=trainable["projector"])

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        network, adam = objective.optimizer(lr, task, _others(trainable)), optax.adam(options.lr)

        def init(params: Any) -> Any:
            return {"others": network.init(_others(params)), "projector": adam.init(params["projector"])}

        def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            updates, others = network.update(_others(grads), state["others"], _others(params))
            change, moments = adam.update(grads["projector"], state["projector"], params["projector"])
            return updates | {"projector": change}, {"others": others, "projector": moments}

        return optax.GradientTransformation(init, update)

    return objective._replace(begin=begin, loss=loss, finish=finish, optimizer=optimizer)


def init_projector(kind: str, key: jax.Array, dim: int) -> jax.Array:
    """`random` is torch's Linear: U(-1/sqrt d, 1/sqrt d), as LDC starts its own."""
    if kind == "identity":
        return jnp.eye(dim)
    return jax.random.uniform(key, (dim, dim), minval=-(dim**-0.5), maxval=dim**-0.5)


def _others(trainable: Trainable) -> Trainable:
    return {name: value for name, value in trainable.items() if name != "projector"}
