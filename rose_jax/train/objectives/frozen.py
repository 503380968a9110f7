"""An encoder that the first task trains and no later one touches: FeTrIL's and FeCAM's.

The first task is FeCAM's: cross-entropy on a cosine head, SGD along a cosine. Later tasks train nothing; they leave the
same encoder and the means of their classes.
"""

import jax
import jax.numpy as jnp
import optax

from rose_jax.models.heads import head_logits, init_head
from rose_jax.train import losses, optimizers
from rose_jax.train.replay import own_transform
from rose_jax.train.schedule import follow
from rose_jax.train.start import class_means, start
from rose_jax.types import (
    Batch,
    Key,
    LossParts,
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


def make(parts: Parts) -> Objective:
    config, encoder, options = parts.config, parts.encoder, parts.config.frozen
    parts = own_transform(parts, options.augment, options.pad)
    num_classes, dim = parts.scenario.num_classes, encoder.feature_dim

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        """Nothing is trained or kept in a later task: all of it is in `prev`."""
        if prev is not None:
            return {}, {}
        return start(
            parts,
            key,
            None,
            lambda head_key: init_head(options.head, head_key, num_classes, dim),
            lambda old, fresh: fresh,
        )

    def batch(key: jax.Array, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
        return Batch(parts.transform(key, images), labels, mask)

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        if prev is not None:
            return jnp.zeros(()), LossParts(kept, {}, None)
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        out, kept = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        logits = head_logits(trainable["head"], out["feature"])
        ce = losses.cross_entropy(logits, batch.labels, batch.mask, task.offset, task.n_new)
        return ce, LossParts(kept, {"ce": ce}, None)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        """Features do not drift, so that the map between old and new ones is the identity."""
        if prev is None:
            variables, head = {"params": trainable["encoder"], "batch_stats": kept}, trainable["head"]
        else:
            variables, head = prev.variables, prev.head
        memory = class_means(view, variables, num_classes, int(task.number))
        return Snapshot(variables, head, jnp.eye(dim), memory, extra={})

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        return optimizers.network("sgd", lr, task.weight_decay, config.train.momentum)

    return Objective(begin, batch, loss, finish, optimizer, follow(options.recipe, config.train))
