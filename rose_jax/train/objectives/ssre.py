"""SSRE (Zhu et al., CVPR 2022): after the first task only 1x1 adapters and the head learn; prototypes are replayed.

When the first task ends, BatchNorm is folded into the convolutions; when a later one ends, its adapters are added to
them (models/fold.py). Images that look like an old class are held to the old features, the others are learnt.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from rose_jax.models.fold import fold, fuse, zero_adapters
from rose_jax.models.heads import Head, head_logits, init_head, normalize, renew_rows
from rose_jax.train import losses
from rose_jax.train.optimizers import network
from rose_jax.train.projector import NO_PROJECTOR, with_projector
from rose_jax.train.replay import own_transform, rehearsed_features
from rose_jax.train.schedule import follow
from rose_jax.train.start import class_means, means_of, start
from rose_jax.types import (
    Array,
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

_ROUNDING = 64  # units in the last place by which equal networks may differ; 9 were seen after 17 convolutions


def make(parts: Parts) -> Objective:
    return with_projector(make_ssre(parts), parts)


def make_ssre(parts: Parts) -> Objective:
    config, encoder, options = parts.config, parts.encoder, parts.config.ssre
    parts = own_transform(parts, options.augment, options.pad)
    dim, num_classes = encoder.feature_dim, parts.scenario.num_classes

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        """Later tasks train no weight of the encoder: what they add to it starts from zero."""
        trainable, stats = start(
            parts,
            key,
            prev,
            lambda head_key: init_head("linear", head_key, num_classes, dim),
            lambda old, fresh: renew_rows(old, fresh, jnp.arange(num_classes) < task.offset),
        )
        if prev is None:
            return trainable, stats
        return {"adapters": zero_adapters(trainable["encoder"]), "head": trainable["head"]}, {}

    def batch(key: Key, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
        return Batch(parts.transform(key, images), labels, mask)

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        if prev is None:
            return first_loss(trainable, kept, batch, task)
        return later_loss(trainable, prev, batch, task, key)

    def first_loss(trainable: Trainable, kept: PyTree, batch: Batch, task: Task) -> LossResult:
        """ssre.base=plain: cross-entropy alone."""
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        out, kept = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        logits = head_logits(trainable["head"], out["feature"]) / options.temperature
        ce = losses.cross_entropy(logits, batch.labels, batch.mask, 0, task.n_new)
        return ce, LossParts(kept, {"ce": ce}, None)

    def later_loss(trainable: Trainable, prev: Snapshot, batch: Batch, task: Task, key: Key) -> LossResult:
        """mean_i (1 - s_i) CE_i + sum_i s_i |f_t(x_i) - f_{t-1}(x_i)| + lambda CE of prototypes, all logits / tau."""
        features = encoder.apply(adapted(prev, trainable), batch.images, norm="running")[0]["feature"]
        z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
        logits = head_logits(trainable["head"], features) / options.temperature
        seen = task.offset + task.n_new
        prototypes = jnp.asarray(prev.extra["mean"])
        alike = likeness(features, prototypes, task.offset)
        if options.detach_similarity:
            alike = jax.lax.stop_gradient(alike)
        chosen = jax.random.randint(key, (options.prototype_batch,), 0, task.offset)
        replayed = head_logits(trainable["head"], prototypes[chosen]) / options.temperature
        among = jnp.arange(num_classes) < seen
        terms = {
            "ce": losses.masked_mean((1 - alike) * losses.row_entropies(logits, batch.labels, among), batch.mask),
            "distill": held_back(alike, features, z_old, batch.mask),
            "prototype": losses.cross_entropy_among(replayed, chosen, jnp.ones(len(chosen)), among),
        }
        total = (
            terms["ce"] + options.distill_weight * terms["distill"] + options.prototype_weight * terms["prototype"]
        )
        return total, LossParts({}, terms, FeaturePair(z_old, features, batch.mask))

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        """Folds, or fuses; prototypes of old classes stay as they were made.

        Beside the prototypes to replay, `memory` has means of plain images: what other rows evolve.
        """
        if prev is None:
            variables = fold({"params": trainable["encoder"], "batch_stats": kept})
        else:
            variables = adapted(prev, trainable)
        features, labels = rehearsed_features(parts, view, variables, task, options.prototypes)
        mean = means_of(features, labels, num_classes, int(task.number)).mean
        if prev is not None:
            mean = jnp.where((jnp.arange(num_classes) < task.offset)[:, None], prev.extra["mean"], mean)
        memory = class_means(view, variables, num_classes, int(task.number))
        return Snapshot(variables, trainable["head"], NO_PROJECTOR, memory, extra={"mean": mean})

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        return network("adam", lr, task.weight_decay, config.train.momentum)

    return Objective(
        begin,
        batch,
        loss,
        finish,
        optimizer,
        follow(options.recipe, config.train),
        adopt=functools.partial(adopt, num_classes, options.prototypes) if options.base == "pass" else None,
    )


def adopt(num_classes: int, prototypes: str, snapshot: Snapshot) -> Snapshot:
    """PASS's first task as SSRE goes on from it: folded, and of its four outputs per class the upright one.

    prototypes: "augmented" takes PASS's own (pass_.prototypes), "plain" the means of plain images.
    """
    head = upright_head(snapshot.head, num_classes)
    mean = snapshot.memory.mean if prototypes == "plain" else snapshot.extra["mean"]
    return snapshot._replace(variables=fold(snapshot.variables), head=head, extra={"mean": mean})


def upright_head(head: Head, num_classes: int) -> Head:
    """Rows 4c of a head with four outputs per class."""
    return {name: rows[:: len(rows) // num_classes] for name, rows in head.items()}


def adapted(prev: Snapshot, trainable: Trainable) -> PyTree:
    """The network before with the adapters in it; its own weights are constants here."""
    params = fuse(prev.variables["params"], trainable["adapters"])
    return {"params": params, "batch_stats": prev.variables["batch_stats"]}


def likeness(features: jax.Array, prototypes: Array, n_old: jax.Array) -> jax.Array:
    """s_i = max_c cos(z_i, p_c) [n] over the prototypes of the first n_old classes."""
    cosines = normalize(features) @ normalize(prototypes).T
    return jnp.max(jnp.where((jnp.arange(len(prototypes)) < n_old)[None, :], cosines, -1.0), axis=1)


def held_back(alike: jax.Array, features: jax.Array, other: jax.Array, mask: jax.Array) -> jax.Array:
    """sum_i s_i |z_i - z'_i|: a sum over the batch, so that it grows with its size.

    At a task's first step the two networks are the same, and the compiler may round them differently. A distance that is
    all rounding counts as 0: its gradient would have length 1 in a direction of chance, which Adam takes at face value.
    """
    squared = jnp.sum(jnp.square(features - other), -1)
    rounding = jnp.square(_ROUNDING * jnp.finfo(other.dtype).eps) * jnp.sum(jnp.square(other), -1)
    distance = losses.safe_sqrt(jnp.where(squared > rounding, squared, 0.0))
    return jnp.sum(jnp.where(mask, alike * distance, 0.0))
