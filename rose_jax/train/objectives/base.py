"""RoSE's baseline, Eq. 6: cross-entropy + lambda_1 distillation + lambda_2 supervised contrast.

The projector of Eq. 7 is trained in the same step (Alg. 2), without a gradient into the encoder.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.config import Config
from rose_jax.models.heads import head_logits, init_head
from rose_jax.models.resnet import Encoder
from rose_jax.train import losses, optimizers
from rose_jax.train.expansion import carry_head, contrast, lasting_head, make_expansion, outputs_among
from rose_jax.types import Batch, ClassMemory, Objective, Snapshot, Task


def make(*, config: Config, encoder: Encoder, num_classes: int, image_shape, transform) -> Objective:
    dim = encoder.feature_dim
    options = config.loss
    expansion = make_expansion(options.expand_labels, config, num_classes, transform, options.second_view)

    def begin(key, prev, task: Task):
        """Task 1 starts from scratch; later ones from the previous network with fresh rows for new classes."""
        encoder_key, head_key, projector_key = jax.random.split(key, 3)
        head = init_head(config.model.head, head_key, expansion.width(prev is None), dim)
        projector = init_projector(config.projector.init, projector_key, dim)
        if prev is None:
            variables = encoder.init(encoder_key, jnp.zeros(image_shape))
        else:
            variables = prev.variables
            head = carry_head(expansion, prev.head, head, task)
        trainable = {"encoder": variables["params"], "head": head, "projector": projector}
        return trainable, variables["batch_stats"]

    def loss(trainable, batch_stats, prev: Snapshot | None, batch: Batch, task: Task, key):
        variables = {"params": trainable["encoder"], "batch_stats": batch_stats}
        out, batch_stats = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        z_new = out["feature"]
        logits = head_logits(trainable["head"], z_new)
        first, count = ce_range(config.loss.ce_range, task)
        among = outputs_among(expansion, logits.shape[1], first, count, task)
        terms = {"ce": losses.cross_entropy_among(logits, batch.labels, batch.mask, among)}
        total = terms["ce"]
        if config.loss.supcon_weight:
            terms["supcon"] = contrast(
                encoder,
                variables,
                z_new,
                batch,
                config.loss.supcon_temperature,
                config.loss.supcon_denominator,
                expansion.lasting,
            )
            total += config.loss.supcon_weight * terms["supcon"]
        if prev is not None:
            z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
            old_logits = head_logits(lasting_head(expansion, prev.head), z_old)
            terms["kd"] = losses.distillation(
                logits[:, : expansion.lasting],
                old_logits,
                batch.mask,
                expansion.per_class * task.offset,
                config.loss.kd_temperature,
            )
            terms["projector"] = losses.projection(
                z_old, z_new, trainable["projector"], batch.mask, config.projector.loss
            )
            total += config.loss.kd_weight * terms["kd"] + terms["projector"]
        return total, (batch_stats, terms)

    def finish(trainable, batch_stats, prev, view, task: Task):
        variables = {"params": trainable["encoder"], "batch_stats": batch_stats}
        memory = class_means(view, variables, num_classes, int(task.index))
        head = lasting_head(expansion, trainable["head"])
        return Snapshot(variables, head, trainable["projector"], memory, extra={})

    def optimizer(lr, task: Task, trainable):
        return sgd_and_projector(lr, task, config)

    return Objective(begin, expansion.batch, loss, finish, optimizer)


def sgd_and_projector(lr, task: Task, config: Config) -> optax.GradientTransformation:
    """torch's SGD (L2 added to the gradient, on everything) for the network, Adam for the projector."""
    sgd = optimizers.network("sgd", lr, task.weight_decay, config.train.momentum)
    return optax.multi_transform(
        {"network": sgd, "projector": optax.adam(config.projector.lr)},
        {"encoder": "network", "head": "network", "projector": "projector"},
    )


def init_projector(kind: str, key: jax.Array, dim: int) -> jax.Array:
    """`random` is torch's Linear: U(-1/sqrt d, 1/sqrt d), as LDC starts its own."""
    if kind == "identity":
        return jnp.eye(dim)
    return jax.random.uniform(key, (dim, dim), minval=-(dim**-0.5), maxval=dim**-0.5)


def ce_range(kind: str, task: Task):
    """First class and number of classes that cross-entropy runs over."""
    if kind == "new":
        return task.offset, task.n_new
    return jnp.zeros_like(task.offset), task.offset + task.n_new


def class_means(view, variables, num_classes: int, task: int) -> ClassMemory:
    """Eq. 2: prototypes of the new classes, under the test transform."""
    features, labels = view.encode_train(variables)
    # On the host in float64: a scatter-add on a GPU adds in any order, and hosts must agree to the last bit.
    sums = np.zeros((num_classes, features.shape[1]))
    np.add.at(sums, labels, features)
    counts = np.bincount(labels, minlength=num_classes)
    mean = (sums / np.maximum(counts, 1)[:, None]).astype(features.dtype)
    return ClassMemory(jnp.asarray(mean), jnp.asarray(np.where(counts > 0, task, -1), jnp.int32))
