"""PASS (Zhu et al., CVPR 2021): rotations as classes, noisy prototypes of old classes, feature distillation.

L = CE(z(x turned k times), 4y + k) + lambda_p CE(head(p_c + r N(0, I)), 4c) + lambda_d ||F_t - F_{t-1}||_F, where
logits z are over a temperature. Old prototypes p_c never move. `pass` is a word of Python's own: hence the file's name.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.models.heads import head_logits, init_head
from rose_jax.statistics.gaussian import class_variances, mean_deviation
from rose_jax.train import losses, optimizers
from rose_jax.train.expansion import carry_head, lasting_head, make_expansion, outputs_among
from rose_jax.train.projector import NO_PROJECTOR, with_projector
from rose_jax.train.replay import noisy_prototypes, own_transform, rehearsed_features
from rose_jax.train.schedule import follow
from rose_jax.train.start import class_means, means_of, start
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
    return with_projector(make_pass(parts), parts)


def make_pass(parts: Parts) -> Objective:
    config, encoder, options = parts.config, parts.encoder, parts.config.pass_
    parts = own_transform(parts, options.augment, options.pad)
    dim, num_classes = encoder.feature_dim, parts.scenario.num_classes
    expansion = make_expansion(parts, rotate=True, mix=False)

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        return start(
            parts,
            key,
            prev,
            lambda head_key: init_head("linear", head_key, expansion.lasting, dim),
            functools.partial(carry_head, expansion, task),
        )

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        out, kept = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        features, seen = out["feature"], task.offset + task.n_new
        logits = head_logits(trainable["head"], features) / options.temperature
        among = outputs_among(expansion, expansion.lasting, 0, seen, task)
        terms = {"ce": losses.cross_entropy_among(logits, batch.labels, batch.mask, among)}
        total, pair = terms["ce"], None
        if prev is not None:
            z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
            noisy, classes = noisy_prototypes(
                key, prev.extra["mean"], prev.extra["radius"], task.offset, options.recipe.batch_size
            )
            lent = head_logits(trainable["head"], noisy) / options.temperature
            terms |= {
                "prototype": losses.cross_entropy_among(
                    lent, expansion.per_class * classes, jnp.ones(len(lent)), among
                ),
                "distill": losses.batch_distance(features, z_old, batch.mask),
            }
            total += options.prototype_weight * terms["prototype"] + options.distill_weight * terms["distill"]
            pair = FeaturePair(z_old, features, batch.mask)
        return total, LossParts(kept, terms, pair)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        """Beside the prototypes to rehearse, `memory` has means of plain images: what other rows evolve."""
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        features, labels = rehearsed_features(parts, view, variables, task, options.prototypes)
        mean = means_of(features, labels, num_classes, int(task.number)).mean
        radius = noise_radius(features, labels, options.radius_of)
        if prev is not None:
            mean = jnp.where((jnp.arange(num_classes) < task.offset)[:, None], prev.extra["mean"], mean)
            before = float(prev.extra["radius"])
            if options.radius == "running":
                radius = running_radius(before, radius, int(task.offset), int(task.n_new), options.radius_of)
            else:
                radius = before
        memory = class_means(view, variables, num_classes, int(task.number))
        extra = {"mean": mean, "radius": jnp.float32(radius)}
        return Snapshot(variables, lasting_head(expansion, trainable["head"]), NO_PROJECTOR, memory, extra=extra)

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        return optimizers.first_and_later(options.first_optimizer, "adam", lr, task, config.train.momentum)

    return Objective(begin, expansion.batch, loss, finish, optimizer, follow(options.recipe, config.train))


def noise_radius(features: np.ndarray, labels: np.ndarray, kind: str) -> float:
    """r of the classes in labels [n]: sqrt(mean_c tr(Sigma_c) / d), or the mean standard deviation (ImageNet code)."""
    if kind == "deviation":
        return mean_deviation(features, labels)
    variances = class_variances(features, labels, int(labels.max()) + 1)
    return float(np.sqrt(variances[np.unique(labels)].mean()))


def running_radius(before: float, newest: float, n_old: int, n_new: int, kind: str) -> float:
    """The paper's r: averaged over all classes so far, r^2 where it is a variance's."""
    power = 1 if kind == "deviation" else 2
    return float(((n_old * before**power + n_new * newest**power) / (n_old + n_new)) ** (1 / power))
