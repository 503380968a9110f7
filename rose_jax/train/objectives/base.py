"""RoSE's baseline, Eq. 6: cross-entropy + lambda_1 distillation + lambda_2 supervised contrast."""

import functools

import jax
import jax.numpy as jnp
import optax

from rose_jax.config import LossOptions
from rose_jax.models.heads import head_logits, init_head
from rose_jax.train import losses, optimizers
from rose_jax.train.expansion import carry_head, contrast, lasting_head, make_expansion, outputs_among
from rose_jax.train.projector import NO_PROJECTOR, with_projector
from rose_jax.train.start import class_means, start
from rose_jax.types import (
    Batch,
    FeaturePair,
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
    return with_projector(make_base(parts, parts.config.loss), parts)


def make_base(parts: Parts, options: LossOptions) -> Objective:
    config, encoder = parts.config, parts.encoder
    expand = options.expand_labels
    expansion = make_expansion(parts, rotate=expand, mix=expand, second_view=expand and options.second_view)

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        """Later tasks have fresh rows of the head for new classes."""
        width, dim = expansion.width(prev is None), encoder.feature_dim
        return start(
            parts,
            key,
            prev,
            lambda head_key: init_head(config.model.head, head_key, width, dim),
            functools.partial(carry_head, expansion, task),
        )

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        out, kept = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        z_new = out["feature"]
        logits = head_logits(trainable["head"], z_new)
        among = outputs_among(expansion, logits.shape[1], *ce_range(options.ce_range, task), task)
        terms = {"ce": losses.cross_entropy_among(logits, batch.labels, batch.mask, among)}
        total, pair = terms["ce"], None
        if options.supcon_weight:
            terms["supcon"] = contrast(
                encoder,
                variables,
                z_new,
                batch,
                options.supcon_temperature,
                options.supcon_denominator,
                expansion.lasting,
            )
            total += options.supcon_weight * terms["supcon"]
        if prev is not None:
            z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
            old_logits = head_logits(lasting_head(expansion, prev.head), z_old)
            terms["kd"] = losses.distillation(
                logits[:, : expansion.lasting],
                old_logits,
                batch.mask,
                expansion.per_class * task.offset,
                options.kd_temperature,
            )
            total += options.kd_weight * terms["kd"]
            pair = FeaturePair(z_old, z_new, batch.mask)
        return total, LossParts(kept, terms, pair)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        memory = class_means(view, variables, parts.scenario.num_classes, int(task.number))
        return Snapshot(variables, lasting_head(expansion, trainable["head"]), NO_PROJECTOR, memory, extra={})

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        """torch's SGD on everything: L2 is added to the gradient."""
        return optimizers.network("sgd", lr, task.weight_decay, config.train.momentum)

    return Objective(begin, expansion.batch, loss, finish, optimizer)


def ce_range(kind: str, task: Task) -> tuple[jax.Array, jax.Array]:
    """First class and number of classes that cross-entropy runs over."""
    if kind == "new":
        return task.offset, task.n_new
    return jnp.zeros_like(task.offset), task.offset + task.n_new
