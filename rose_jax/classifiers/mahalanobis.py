"""FeCAM (Goswami et al., NeurIPS 2023): the nearest class by Mahalanobis distance, for an encoder that stays as it is.

    D_c(x) = (x~ - mu~_c)^T pinv(Sigma_c) (x~ - mu~_c),      x~ = x^beta / |x^beta|,  mu~_c = mu_c^beta / |mu_c^beta|

mu_c is the mean of plain features, Sigma_c the covariance of x^beta. Each class has its own, [C, d, d] of them, or all
share one. As in FeCAM's code, the first stage compares by cosine with the rows of the trained head.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.config import FeCAMOptions
from rose_jax.errors import UserError
from rose_jax.evolution.core import matmul, score_table
from rose_jax.models.heads import normalize
from rose_jax.statistics import covariance as cov
from rose_jax.statistics import shrinkage
from rose_jax.train.replay import own_transform
from rose_jax.types import Array, Augment, Classifier, ClassMemory, Logits, Parts, PyTree, StageView


def make(parts: Parts) -> Classifier:
    """Row fecam. params: `factor` [C, d, d] and `sign` [C, d] of the inverses."""
    options = parts.config.fecam

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        classes, dim = np.shape(memory.mean)
        factor = previous["factor"].copy() if previous else np.zeros((classes, dim, dim), np.float32)
        sign = previous["sign"].copy() if previous else np.zeros((classes, dim), np.float32)
        features, labels = shrinkage.readable(*view.train_features(view.stage))
        for c in np.flatnonzero(np.asarray(memory.origin) == view.stage):
            view.pause()
            own = features[labels == c]
            factor[c], sign[c] = shrinkage.inverse_factor(class_covariance(own, int(c), options))
        return {"factor": factor, "sign": sign} | first_stage(options, memory, view)

    def distances(params: PyTree, x: jax.Array, mean: jax.Array) -> jax.Array:
        def one(of_class: tuple[jax.Array, ...]) -> jax.Array:  # class by class: never [n, C, d] at once
            factor, sign, mu = of_class
            return matmul(jnp.square(matmul(x - mu[None, :], factor)), sign)

        return jax.lax.map(one, (params["factor"], params["sign"], mean)).T

    return Classifier(fit, make_logits(options, distances))


def make_common(parts: Parts) -> Classifier:
    """Row fecam_1. params: Sigma as `covariance` [d, d], `factor` [d, d] and `sign` [d] of its inverse.

    Sigma <- (k Sigma + n Sigma_new) / (k + n), with k old classes and n new ones.
    """
    options, seed, frozen = parts.config.fecam, parts.config.seed, parts.config.frozen
    transform = own_transform(parts, frozen.augment, frozen.pad).transform  # the encoder's

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        covariance = task_covariance(view, options, seed, transform, len(memory.origin))
        if previous or options.shrink_first:
            covariance = shrinkage.shrunk(covariance, options.alpha1, options.alpha2, options.mean_covariance)
        if previous:
            origin = np.asarray(memory.origin)
            share = (origin == view.stage).sum() / (origin >= 0).sum()
            covariance = (1 - share) * np.asarray(previous["covariance"], np.float64) + share * covariance
        factor, sign = shrinkage.inverse_factor(covariance)
        params = {"covariance": covariance, "factor": factor, "sign": sign}
        return {name: x.astype(np.float32) for name, x in params.items()} | first_stage(options, memory, view)

    def distances(params: PyTree, x: jax.Array, mean: jax.Array) -> jax.Array:
        x, mean = (matmul(points, params["factor"]) for points in (x, mean))
        return jax.lax.map(lambda mu: matmul(jnp.square(x - mu[None, :]), params["sign"]), mean).T

    return Classifier(fit, make_logits(options, distances))


def class_covariance(features: np.ndarray, c: int, options: FeCAMOptions) -> np.ndarray:
    """Of x^beta for the images of a class: shrunk, by default twice, then a correlation matrix."""
    if len(features) < 2:
        raise UserError(
            f"FeCAM needs at least two images of each class for its covariance; class {c} (in the order of the tasks) "
            f"has {len(features)}. Row fecam_1 has one covariance for all classes."
        )
    covariance = shrinkage.total_scatter(shrinkage.tukey(features, options.beta))
    if not covariance.any():
        raise UserError(
            f"FeCAM cannot invert a covariance of 0: all images of class {c} have one and the same feature."
        )
    for _ in range(options.shrink_times):
        covariance = shrinkage.shrunk(covariance, options.alpha1, options.alpha2, options.mean_covariance)
    return shrinkage.correlation(covariance) if options.correlation else covariance


def task_covariance(
    view: StageView, options: FeCAMOptions, seed: int, transform: Augment, num_classes: int
) -> np.ndarray:
    """Of x^beta for all images of D_t, about their common mean or each class about its own."""
    plain = options.common_images == "plain"
    features, labels = view.train_features(view.stage) if plain else augmented(view, seed, transform)
    features, labels = shrinkage.readable(features, labels)
    features = shrinkage.tukey(features, options.beta)
    if options.scatter == "total":
        return shrinkage.total_scatter(features)
    within = cov.within_class(features, labels, num_classes)
    if not within.classes:
        raise UserError("config.fecam.scatter within needs a class of at least two images in each task.")
    return within.shared


def augmented(view: StageView, seed: int, transform: Augment) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of one pass over D_t as it is trained on: the loader that FeCAM's code reads here."""
    key = jax.random.fold_in(jax.random.key(seed), view.stage)
    variables, found = view.snapshots[view.stage].variables, []
    for images, labels, mask in view.train_batches(key, 1, transform):
        rows = np.asarray(mask)
        found.append((np.asarray(view.encode(variables, images))[rows], np.asarray(labels)[rows]))
    features, labels = (np.concatenate(part) for part in zip(*found, strict=True))
    return features, labels


def first_stage(options: FeCAMOptions, memory: ClassMemory, view: StageView) -> dict[str, Array]:
    """Whether this stage predicts by cosine, and the head's rows [C, d] for it."""
    by_cosine = view.stage == 0 and options.first_stage == "cosine"
    rows = view.snapshots[0].head["weight"] if by_cosine else np.zeros(np.shape(memory.mean), np.float32)
    return {"by_cosine": np.array(by_cosine), "rows": rows}


def make_logits(options: FeCAMOptions, distances: Callable[[PyTree, jax.Array, jax.Array], jax.Array]) -> Logits:
    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        """-D_c(x); a feature that is not finite, or negative where it has to have a root, is NaN."""
        seen = jnp.asarray(memory.origin) >= 0

        def mahalanobis() -> jax.Array:
            x, mean = (normalize(jnp.asarray(points) ** options.beta) for points in (feature, memory.mean))
            bad = ~jnp.isfinite(x).all(axis=1)[:, None]
            scores = -distances(params, jnp.where(bad, 0, x), mean)
            return jnp.where(bad, jnp.nan, jnp.where(seen[None, :], scores, -jnp.inf))

        def cosine() -> jax.Array:
            return score_table(feature, params["rows"], seen, ~jnp.isfinite(feature).all(axis=1))

        return jax.lax.cond(params["by_cosine"], cosine, mahalanobis)

    return logits
