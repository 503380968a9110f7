"""EFC (Magistri et al., ICLR 2024): features may drift where the heads do not look, prototypes are rehearsed.

Later tasks freeze BatchNorm, hold features by the empirical feature matrix E of the task before, and train all
heads on samples of old classes' Gaussians beside images of the previous mini-batch. The heads of all tasks are
one bias-free head of fixed width; "the current head" is a range of its rows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.data.augment import train_transform, views
from rose_jax.models.heads import head_logits, init_head, renew_rows
from rose_jax.statistics.drift import Pairs, paired_features
from rose_jax.statistics.gaussian import class_moments, sampling_factor
from rose_jax.train import losses
from rose_jax.train.optimizers import network
from rose_jax.train.projector import NO_PROJECTOR, with_projector
from rose_jax.train.schedule import follow
from rose_jax.train.start import class_means, start
from rose_jax.train.step import FINISH, task_key
from rose_jax.types import (
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

AUXILIARY = views.ROTATIONS - 1  # outputs per class of the first task's rotation head


def make(parts: Parts) -> Objective:
    return with_projector(make_efc(parts), parts)


def make_efc(parts: Parts) -> Objective:
    config, encoder, options = parts.config, parts.encoder, parts.config.efc
    dim, num_classes, n_first = encoder.feature_dim, parts.scenario.num_classes, parts.scenario.sizes[0]
    batch_size, transform = options.recipe.batch_size, parts.transform
    if options.augment:
        transform = train_transform(options.augment, normalise=parts.normalise, pad=options.pad)

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        """The first task has a head for rotations; later ones a buffer of the previous mini-batch."""
        trainable, norm = start(
            parts,
            key,
            prev,
            lambda head_key: init_head("bias_free", head_key, num_classes, dim),
            lambda old, fresh: renew_rows(old, fresh, jnp.arange(num_classes) < task.offset),
        )
        if prev is None:
            auxiliary = init_head("linear", jax.random.split(key, 4)[3], AUXILIARY * n_first, dim)
            return trainable | {"auxiliary": auxiliary}, {"norm": norm}
        buffer = {
            "images": jnp.zeros((batch_size, *parts.image_shape)),
            "labels": jnp.zeros(batch_size, jnp.int32),
            "count": jnp.zeros((), jnp.int32),
        }
        return trainable, {"norm": norm, "buffer": buffer}

    def batch(key: jax.Array, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
        return Batch(transform(key, images), labels, mask)

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        if prev is None:
            return first_loss(trainable, kept, batch)
        return later_loss(trainable, kept, prev, batch, task, key)

    def first_loss(trainable: Trainable, kept: PyTree, batch: Batch) -> LossResult:
        """CE over [C_1 classes | 3 C_1 rotated ones]; an upright image belongs to its class."""
        images, labels = rotated_batch(batch.images, batch.labels, n_first)
        mask = jnp.tile(batch.mask, views.ROTATIONS)
        variables = {"params": trainable["encoder"], "batch_stats": kept["norm"]}
        out, norm = encoder.apply(variables, images, norm="batch", mask=mask)
        logits = jnp.concatenate(
            [
                head_logits(trainable["head"], out["feature"])[:, :n_first],
                head_logits(trainable["auxiliary"], out["feature"]),
            ],
            1,
        )
        ce = losses.cross_entropy(logits, labels, mask, 0, logits.shape[1])
        return ce, LossParts({"norm": norm}, {"ce": ce}, None)

    def later_loss(
        trainable: Trainable, kept: PyTree, prev: Snapshot, batch: Batch, task: Task, key: Key
    ) -> LossResult:
        count_key, sample_key = jax.random.split(key)
        buffer, n = kept["buffer"], len(batch.images)
        variables = {"params": trainable["encoder"], "batch_stats": kept["norm"]}
        images = jnp.concatenate([batch.images, buffer["images"]])
        features = encoder.apply(variables, images, norm="running")[0]["feature"]
        logits = head_logits(trainable["head"], features)
        z_old = encoder.apply(prev.variables, batch.images, norm="running")[0]["feature"]
        seen = task.offset + task.n_new

        # The first step of a task has no previous mini-batch, and rehearses prototypes alone.
        n_old, n_new = rehearsal_counts(count_key, task.offset, seen, batch_size, num_classes)
        started = buffer["count"] > 0
        n_old = jnp.where(started, n_old, options.prototype_batch)
        n_new = jnp.where(started, jnp.minimum(n_new, buffer["count"]), 0)
        samples, sample_labels = sample_prototypes(
            sample_key, prev.extra["mean"], prev.extra["factor"], task.offset, options.prototype_batch
        )
        rehearsed = jnp.concatenate([head_logits(trainable["head"], samples), logits[n:]])
        rehearsed_labels = jnp.concatenate([sample_labels, buffer["labels"]])
        rehearsed_mask = jnp.concatenate([jnp.arange(len(samples)) < n_old, jnp.arange(batch_size) < n_new])

        terms = {
            "ce": losses.cross_entropy(logits[:n], batch.labels, batch.mask, task.offset, task.n_new),
            "efm": efm_penalty(
                features[:n] - z_old, prev.extra["efm"], options.efm_weight, options.damping, batch.mask
            ),
            "rehearsal": losses.cross_entropy(rehearsed, rehearsed_labels, rehearsed_mask, 0, seen),
        }
        rows = jnp.arange(batch_size)  # padding comes last; XLA cannot slice a split axis unevenly, but gather
        buffer = {
            "images": batch.images[rows],
            "labels": batch.labels[rows],
            "count": batch.mask.sum(dtype=jnp.int32),
        }
        pair = FeaturePair(z_old, features[:n], batch.mask)
        total = functools.reduce(jnp.add, terms.values())
        return total, LossParts({"norm": kept["norm"], "buffer": buffer}, terms, pair)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        """Old means move by E_{t-1}'s drift; then E_t and the new classes' Gaussians, all on augmented images."""
        variables = {"params": trainable["encoder"], "batch_stats": kept["norm"]}
        before = variables if prev is None else prev.variables
        key = task_key(config.seed, task.number, FINISH)
        pairs = paired_features(view, key, before, variables, transform)
        stage, offset = int(task.number), int(task.offset)
        extra = statistics(pairs, np.asarray(trainable["head"]["weight"]), offset + int(task.n_new), num_classes)
        plain = class_means(view, variables, num_classes, stage)
        origin, mean = plain.origin, plain.mean
        if prev is not None:
            kept_means = np.asarray(prev.extra["mean"])
            drift = np.zeros_like(kept_means)
            drift[:offset] = elastic_drift(
                pairs, kept_means[:offset], np.asarray(prev.extra["efm"]), options.sigma
            )
            old = jnp.arange(num_classes) < offset
            extra["mean"] = jnp.where(old[:, None], kept_means + drift, extra["mean"])
            extra["factor"] = jnp.where(old[:, None, None], prev.extra["factor"], extra["factor"])
            # Beside them the means of plain images, moved alike: what others evolve, and what the drift is read from.
            mean = jnp.where(old[:, None], prev.memory.mean + drift, plain.mean)
            origin = jnp.where(old, prev.memory.origin, plain.origin)
        return Snapshot(variables, trainable["head"], NO_PROJECTOR, ClassMemory(mean, origin), extra=extra)

    def optimizer(lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        first = "auxiliary" in trainable
        kind = options.first_optimizer if first else "adam"
        head_lr = lr if first else options.head_lr_factor * lr
        labels = {
            "encoder": jax.tree_util.tree_map_with_path(
                lambda path, _: "network" if first or path[-1].key == "kernel" else "frozen",
                trainable["encoder"],
            ),
            "head": "head",
        }
        if first:
            labels["auxiliary"] = "head"
        return optax.multi_transform(
            {
                "network": network(kind, lr, task.weight_decay, config.train.momentum),
                "head": network(kind, head_lr, task.weight_decay, config.train.momentum),
                "frozen": optax.set_to_zero(),  # BatchNorm's scale and bias
            },
            labels,
        )

    return Objective(begin, batch, loss, finish, optimizer, follow(options.recipe, config.train))


def rotated_batch(images: jax.Array, labels: jax.Array, n_classes: int) -> tuple[jax.Array, jax.Array]:
    """[B, h, h, 3] -> the batch at 0, 90, 180, 270 degrees [4B, ...]; class y turned k times is C + 3y + k - 1."""
    turned = views.turn(images).reshape(-1, *images.shape[1:])
    auxiliary = [n_classes + AUXILIARY * labels + k for k in range(AUXILIARY)]
    return turned, jnp.concatenate([labels, *auxiliary])


def efm_penalty(drift: jax.Array, efm: jax.Array, efm_weight: float, damping: float, mask: jax.Array) -> jax.Array:
    """mean_i d_i^T (lambda E + eta I) d_i over the rows of drift [n, d]; efm: E [d, d]."""
    matrix = efm_weight * efm + damping * jnp.eye(len(efm))
    return losses.masked_mean(jnp.sum((drift @ matrix) * drift, -1), mask)


def rehearsal_counts(
    key: jax.Array, n_old: jax.Array, n_seen: jax.Array, size: int, num_classes: int
) -> tuple[jax.Array, jax.Array]:
    """How many prototypes and how many buffered images to rehearse: `size` class ids, old ones and new ones.

    Ids are drawn without replacement among the classes seen; where these are fewer than `size`, as many as are
    needed come once more, but no third time.
    """
    draws = jax.random.uniform(key, (num_classes,))
    order = jnp.argsort(jnp.where(jnp.arange(num_classes) < n_seen, draws, 2.0))
    slot = jnp.arange(size)
    chosen = order[jnp.minimum(jnp.where(slot < n_seen, slot, slot - n_seen), num_classes - 1)]
    drawn = slot < 2 * n_seen
    return jnp.sum(drawn & (chosen < n_old)), jnp.sum(drawn & (chosen >= n_old))


def sample_prototypes(
    key: jax.Array, mean: jax.Array, factor: jax.Array, n_old: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
    """`size` features and labels of old classes, as evenly as can be, in random order.

    mean: [C, d]; factor: [C, d, d] as of `gaussian.sampling_factor`.
    """
    order_key, shuffle_key, noise_key = jax.random.split(key, 3)
    draws = jax.random.uniform(order_key, (len(mean),))
    order = jnp.argsort(jnp.where(jnp.arange(len(mean)) < n_old, draws, 2.0))
    labels = jax.random.permutation(shuffle_key, order[jnp.arange(size) % jnp.maximum(n_old, 1)])
    noise = jax.random.normal(noise_key, (size, mean.shape[1]))
    return mean[labels] + jnp.einsum("nij,nj->ni", factor[labels], noise), labels


def statistics(pairs: Pairs, weight: np.ndarray, n_seen: int, num_classes: int) -> dict[str, jax.Array]:
    """E_t, and the Gaussians of the classes in `pairs`; other classes have zeros."""
    mean, covariance, counts = class_moments(pairs.new, pairs.labels, num_classes)
    factor = np.zeros_like(covariance)
    present = counts > 0
    factor[present] = sampling_factor(covariance[present])
    efm = empirical_feature_matrix(pairs.new, weight[:n_seen])
    return {name: jnp.asarray(x, jnp.float32) for name, x in (("efm", efm), ("mean", mean), ("factor", factor))}


def empirical_feature_matrix(features: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """E = (1/n) sum_i W^T (diag(p_i) - p_i p_i^T) W [d, d], p_i = softmax(W z_i); weight: W [C, d]."""
    logits = np.asarray(features, np.float64) @ np.asarray(weight, np.float64).T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    middle = np.diag(p.sum(0)) - p.T @ p
    return weight.T.astype(np.float64) @ middle @ weight / len(p)


def elastic_drift(pairs: Pairs, prototypes: np.ndarray, efm: np.ndarray, sigma: float) -> np.ndarray:
    """sum_i w_ci d_i / sum_i w_ci [k, d]; w = exp(s / 2 sigma^2), s_ci = -(z_i - p_c)^T E (z_i - p_c) in [0, 1].

    s is brought to [0, 1] by its least and largest value over all images and prototypes [k, d] together. Where
    all are the same (E = 0), so are the weights.
    """
    old, prototypes, efm = (np.asarray(x, np.float64) for x in (pairs.old, prototypes, efm))
    squares = ((old @ efm) * old).sum(1)[None, :] + ((prototypes @ efm) * prototypes).sum(1)[:, None]
    scores = -(squares - 2 * prototypes @ efm @ old.T)
    spread = np.ptp(scores)
    scaled = (scores - scores.min()) / spread if spread > 0 else np.zeros_like(scores)
    weights = np.exp(scaled / (2 * sigma**2))
    weights /= weights.sum(1, keepdims=True)
    return weights @ (np.asarray(pairs.new, np.float64) - old)
