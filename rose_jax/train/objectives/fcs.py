"""FCS (Li et al., CVPR 2024): feature distillation, a calibration network T, contrastive prototypes.

Rotations and mixtures are classes (train/expansion.py). T takes old features to new ones; it moves the prototypes
when a task ends, and on the way lends them, with noise, to the head.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from rose_jax.models.heads import Head, head_logits, init_head
from rose_jax.statistics.gaussian import class_variances
from rose_jax.train import losses
from rose_jax.train.expansion import carry_head, contrast, lasting_head, make_expansion, outputs_among
from rose_jax.train.optimizers import network
from rose_jax.train.projector import NO_PROJECTOR, with_projector
from rose_jax.train.replay import noisy_prototypes
from rose_jax.train.schedule import follow
from rose_jax.train.start import class_means, start
from rose_jax.types import (
    Array,
    Batch,
    ClassMemory,
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
    return with_projector(make_fcs(parts), parts)


def make_fcs(parts: Parts) -> Objective:
    config, encoder, options = parts.config, parts.encoder, parts.config.fcs
    dim, num_classes = encoder.feature_dim, parts.scenario.num_classes
    expansion = make_expansion(parts, rotate=True, mix=True, second_view=True)

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        """T starts as the identity in every later task; the first has none."""
        trainable, kept = start(
            parts,
            key,
            prev,
            lambda head_key: init_linear(head_key, expansion.width(prev is None), dim),
            functools.partial(carry_head, expansion, task),
        )
        if prev is not None:
            trainable["transfer"] = {"weight": jnp.eye(dim), "bias": jnp.zeros(dim)}
        return trainable, kept

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        out, kept = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        features, seen = out["feature"], task.offset + task.n_new
        logits = head_logits(trainable["head"], features) / options.temperature
        among = outputs_among(expansion, logits.shape[1], 0, seen, task)
        terms = {"ce": losses.cross_entropy_among(logits, batch.labels, batch.mask, among)}
        total, lent_keys, pair = terms["ce"], None, None
        if prev is not None:
            z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
            radius = mean_radius(prev.memory, prev.extra["variance"])
            noisy = noisy_prototypes(key, prev.memory.mean, radius, task.offset, options.prototype_batch)
            lent = jax.lax.stop_gradient(transfer(trainable["transfer"], noisy[0]))
            lent_labels = expansion.per_class * noisy[1]
            lent_logits = head_logits(trainable["head"], lent) / options.temperature
            terms |= {
                "distill": losses.batch_distance(features, z_old, batch.mask),
                "transfer": mean_distance(features, transfer(trainable["transfer"], z_old), batch.mask),
                "prototype": losses.cross_entropy(
                    lent_logits, lent_labels, jnp.ones(len(lent)), 0, expansion.per_class * seen
                ),
            }
            total += (
                options.distill_weight * terms["distill"]
                + options.transfer_weight * terms["transfer"]
                + options.prototype_weight * terms["prototype"]
            )
            pair = FeaturePair(z_old, features, batch.mask)
            lent_keys = (
                noisy[0],
                lent_labels,
            )  # as keys they are upright images of their class, and not transferred
        terms["contrast"] = contrast(
            encoder,
            variables,
            features,
            batch,
            options.contrast_temperature,
            "negatives_and_self",
            expansion.lasting,
            lent_keys,
        )
        return total + options.contrast_weight * terms["contrast"], LossParts(kept, terms, pair)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        """p_c <- T(p_c) for old classes; means and variances of the new ones under the test transform."""
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        memory = class_means(view, variables, num_classes, int(task.number))
        features, labels = view.encode_train(variables)
        variance = jnp.asarray(class_variances(features, labels, num_classes), jnp.float32)
        if prev is not None:
            old = jnp.arange(num_classes) < task.offset
            moved = transfer(trainable["transfer"], prev.memory.mean)
            memory = ClassMemory(
                jnp.where(old[:, None], moved, memory.mean), jnp.where(old, prev.memory.origin, memory.origin)
            )
            variance = jnp.where(old, prev.extra["variance"], variance)
        head = lasting_head(expansion, trainable["head"])
        return Snapshot(variables, head, NO_PROJECTOR, memory, extra={"variance": variance})

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        kind = "adam" if "transfer" in trainable else options.first_optimizer
        return network(kind, lr, task.weight_decay, config.train.momentum)

    return Objective(begin, expansion.batch, loss, finish, optimizer, follow(options.recipe, config.train))


def init_linear(key: jax.Array, rows: int, dim: int) -> Head:
    """Weights of variance 1/d (torch's kaiming_uniform_ for a linear layer), no bias at first."""
    head = init_head("linear", key, rows, dim)
    return {"weight": 3**0.5 * head["weight"], "bias": jnp.zeros(rows)}


def transfer(network: dict[str, jax.Array], features: Array) -> jax.Array:
    """T(z) = z A + b for rows z [n, d]."""
    return jnp.asarray(features) @ network["weight"] + network["bias"][None, :]


def mean_distance(features: jax.Array, other: jax.Array, mask: jax.Array) -> jax.Array:
    """mean_i |z_i - z'_i|, not squared."""
    return losses.masked_mean(losses.safe_sqrt(jnp.sum(jnp.square(features - other), -1)), mask)


def mean_radius(memory: ClassMemory, variance: jax.Array) -> jax.Array:
    """r, where r^2 is the mean of the variances [C] of known classes."""
    known = memory.origin >= 0
    return jnp.sqrt(jnp.sum(jnp.where(known, variance, 0.0)) / jnp.maximum(known.sum(), 1))
