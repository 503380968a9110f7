"""IL2A (Zhu et al., NeurIPS 2021): mixtures of classes as classes, semantically augmented prototypes, distillation.

L = CE(z) + lambda_s CE(semantic logits of p_c, c) + lambda_d ||F_t - F_{t-1}||_F, where logits z, over all classes seen
and the task's mixtures, are over a temperature. Old prototypes p_c and covariances Sigma_c never move.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.errors import UserError
from rose_jax.models.heads import Head, head_logits, init_head
from rose_jax.statistics.gaussian import class_moments
from rose_jax.train import losses, optimizers
from rose_jax.train.expansion import carry_head, lasting_head, make_expansion, outputs_among
from rose_jax.train.projector import NO_PROJECTOR, with_projector
from rose_jax.train.replay import draw_classes, own_transform, rehearsed_features
from rose_jax.train.schedule import follow
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
    config = parts.config
    if config.il2a.recipe.first.epochs < 1:
        raise UserError(
            f"IL2A's authors give no recipe for {config.data.dataset}. To train il2a, fill in config.il2a.recipe "
            "(first.epochs is 0)."
        )
    return with_projector(make_il2a(parts), parts)


def make_il2a(parts: Parts) -> Objective:
    config, encoder, options = parts.config, parts.encoder, parts.config.il2a
    parts = own_transform(parts, options.augment, options.pad)
    dim, num_classes = encoder.feature_dim, parts.scenario.num_classes
    low, high = options.mix_range
    expansion = make_expansion(parts, rotate=False, mix=True, mix_times=options.mix_times, mix_range=(low, high))
    legacy = legacy_index(parts.scenario.sizes)

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        return start(
            parts,
            key,
            prev,
            lambda head_key: init_head("linear", head_key, expansion.width(prev is None), dim),
            functools.partial(carry_head, expansion, task),
        )

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        out, kept = encoder.apply(variables, batch.images, norm="batch", mask=batch.mask)
        features, seen = out["feature"], task.offset + task.n_new
        logits = head_logits(trainable["head"], features) / options.temperature
        among = outputs_among(expansion, logits.shape[1], 0, seen, task)
        terms = {"ce": losses.cross_entropy_among(logits, batch.labels, batch.mask, among)}
        total, pair = terms["ce"], None
        if prev is not None:
            z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
            classes, counts = draw_classes(
                key, task.offset, options.recipe.batch_size, num_classes, options.distinct
            )
            whose = jnp.asarray(legacy)[task.number][classes] if options.legacy_cov_index else classes
            lent = semantic_logits(
                lasting_head(expansion, trainable["head"]),
                prev.extra["mean"][classes],
                prev.extra["covariance"][whose],
                classes,
                options.gamma,
            )
            terms |= {
                "semantic": losses.cross_entropy(lent / options.temperature, classes, counts, 0, seen),
                "distill": losses.batch_distance(features, z_old, batch.mask),
            }
            total += options.semantic_weight * terms["semantic"] + options.distill_weight * terms["distill"]
            pair = FeaturePair(z_old, features, batch.mask)
        return total, LossParts(kept, terms, pair)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        """Beside the Gaussians to rehearse, `memory` has means of plain images: what other rows evolve."""
        variables = {"params": trainable["encoder"], "batch_stats": kept}
        features, labels = rehearsed_features(parts, view, variables, task, options.prototypes)
        mean, covariance, _ = class_moments(features, labels, num_classes)
        extra = {"mean": jnp.asarray(mean, jnp.float32), "covariance": jnp.asarray(covariance, jnp.float32)}
        if prev is not None:
            old = jnp.arange(num_classes) < task.offset
            extra = {
                "mean": jnp.where(old[:, None], prev.extra["mean"], extra["mean"]),
                "covariance": jnp.where(old[:, None, None], prev.extra["covariance"], extra["covariance"]),
            }
        memory = class_means(view, variables, num_classes, int(task.number))
        return Snapshot(variables, lasting_head(expansion, trainable["head"]), NO_PROJECTOR, memory, extra=extra)

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        return optimizers.network("adam", lr, task.weight_decay, config.train.momentum)

    return Objective(begin, expansion.batch, loss, finish, optimizer, follow(options.recipe, config.train))


def semantic_logits(
    head: Head, prototypes: jax.Array, covariances: jax.Array, classes: jax.Array, gamma: float
) -> jax.Array:
    """w_j p_c + b_j + (gamma / 2) (w_j - w_c)^T Sigma_c (w_j - w_c) [n, C]; gradients pass through all w.

    The bound that cross-entropy has over samples of N(p_c, gamma Sigma_c). prototypes: p_c [n, d],
    covariances: Sigma_c [n, d, d], classes: c [n].
    """
    weight = head["weight"]
    difference = weight[None, :, :] - weight[classes][:, None, :]  # [n, C, d]
    spread = jnp.sum(jnp.einsum("njd,nde->nje", difference, covariances) * difference, -1)
    return head_logits(head, prototypes) + 0.5 * gamma * spread


def legacy_index(sizes: tuple[int, ...]) -> np.ndarray:
    """[T, C]: whose covariance the authors' code gives to old class c in task t.

    It puts the newest task's covariances before all earlier ones, and takes the c-th. What is not old yet stays.
    """
    ends = np.cumsum(sizes)
    index = np.tile(np.arange(ends[-1]), (len(sizes), 1))
    for task in range(1, len(sizes)):
        newest_first = [np.arange(ends[t] - sizes[t], ends[t]) for t in reversed(range(task))]
        index[task, : ends[task - 1]] = np.concatenate(newest_first)
    return index
