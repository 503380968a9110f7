"""Prototypes in an evolved metric: the within-class covariance drifts by the map that moves the prototypes.

    Sigma_t(W) = (k (W^T Sigma_{t-1} W + R(W)) + n Sigma_new) / (k + n),      k old classes, n new ones

R(W) is the second moment of the map's own error z' - z W. Images and prototypes are centred on the mean prototype,
whitened with (Sigma_t + rho tr(Sigma_t)/d I)^(-1/2) and compared there. One [d, d] matrix is kept, however many
classes there are. See docs/evolved_metric.md.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.classifiers import queue
from rose_jax.config import MetricOptions
from rose_jax.evolution.core import Metric, score_table
from rose_jax.statistics import covariance as cov
from rose_jax.types import Array, Classifier, ClassMemory, Motion, Parts, PyTree, StageView

PRIOR_PAIRS = 64.0  # what D_t counts for beside the pairs of the stream; with 1, accuracy hardly differs
COMPARE = {"cosine": "cosine", "lda": "distance"}  # config.metric.kind -> Metric.compare


def make(parts: Parts) -> Classifier:
    return from_options(parts.config.metric)


def from_options(options: MetricOptions) -> Classifier:
    """params: what `fit` measures, then in `follow` `covariance` (Sigma_t), `center` [d] and `transform`.

    With per_class_weight w, class c has the covariance (1 - w) Sigma_t + w Sigma_c and a transform of its own.
    """
    if options.source == "queue":
        return queue.make(options.queue_ridge)
    compare, weight = COMPARE[options.kind], options.per_class_weight
    source = SOURCES[options.source]

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        features, labels = view.train_features(view.stage)
        within = cov.within_class(features, labels, len(memory.origin), each=weight > 0)
        pairs = None
        if options.error != "none":  # the first stage has no pairs; params are of the same shape at every stage
            before = view.train_features(view.stage - 1)[0] if view.stage else features[:0]
            pairs = task_pairs(before, features[: len(before)])
        params = measured(
            (within.shared, within.classes),
            (previous["covariance"], previous["classes"]) if previous else (np.zeros_like(within.shared), 0),
            options.ridge if options.shrinkage == "fixed" else as_ridge(within.shrinkage),
            pairs,
        )
        if within.each is not None:
            fresh = within.has_own
            params["each"] = np.where(fresh[:, None, None], within.each, previous["each"] if previous else 0)
            params["fresh"], params["owned"] = fresh, fresh | (previous["owned"] > 0 if previous else False)
        return {name: np.asarray(value, np.float32) for name, value in params.items()}

    def follow(params: PyTree, memory: ClassMemory, drift_map: Array | None, pairs: PyTree) -> PyTree:
        seen = memory.origin >= 0
        center = jnp.sum(jnp.where(seen[:, None], memory.mean, 0), axis=0) / jnp.maximum(seen.sum(), 1)
        covariance = source(params, drift_map, pairs)
        evolved = params | {"covariance": covariance, "center": center}
        if not weight:
            transform, _ = cov.whitening(covariance, params["ridge"])
            return evolved | {"transform": transform}
        each = cov.moved(params["each"], drift_map) + mean_error(params, drift_map, pairs)[None]
        each = jnp.where(params["fresh"][:, None, None] > 0, params["each"], each)
        own = (1 - weight) * covariance[None] + weight * each
        own = jnp.where(params["owned"][:, None, None] > 0, own, covariance[None])  # a class of one image has none
        transform, log_det = jax.lax.map(lambda sigma: cov.whitening(sigma, params["ridge"]), own)
        return evolved | {"each_now": each, "transform": transform, "log_det": log_det}

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        mean, seen = jnp.asarray(memory.mean), jnp.asarray(memory.origin) >= 0
        bad = ~jnp.isfinite(feature).all(axis=1)
        if not weight:
            return score_table(feature, mean, seen, bad, metric(params))

        def score(one: tuple[jax.Array, ...]) -> jax.Array:  # of a class, in its own metric
            transform, prototype, log_det = one
            scores = score_table(
                feature, prototype[None], jnp.ones(1, bool), bad, Metric(params["center"], transform, compare)
            )
            return scores[:, 0] - (log_det / 2 if compare == "distance" else 0)

        scores = jax.lax.map(score, (params["transform"], mean, params["log_det"])).T
        return jnp.where(seen[None, :], scores, -jnp.inf)

    def metric(params: PyTree) -> Metric:
        return Metric(params["center"], params["transform"], compare)

    def keep(params: PyTree) -> PyTree:
        kept = {name: params[name] for name in ("covariance", "center", "transform", "ridge")}
        kept["classes"] = params["carried_classes"] + params["new_classes"]
        if weight:
            kept |= {"each": params["each_now"], "owned": params["owned"], "log_det": params["log_det"]}
        return kept

    motion = Motion(
        follow,
        keep,
        None if weight else metric,
        options.refresh,
        reads_pairs=options.error == "stream" and options.source == "evolved",
    )
    return Classifier(fit, logits, scored_by_evolution=not weight, motion=motion)


def measured(
    new: tuple[Array, Array | int],
    carried: tuple[Array, Array | int],
    ridge: float,
    pairs: cov.PairMoments | None,
) -> PyTree:
    """Params as `fit` gives them. new, carried: a mean covariance [d, d], and of how many classes it is.

    pairs: of D_t under both encoders, which R(W) starts from; None: R is 0 whatever comes.
    """
    params = {"new": new[0], "new_classes": new[1], "carried": carried[0], "carried_classes": carried[1]}
    if pairs is not None:
        params |= {f"pairs_{name}": value for name, value in pairs._asdict().items()}
    return params | {"ridge": ridge}


def evolved_covariance(params: PyTree, drift_map: Array | None, pairs: cov.PairMoments | None) -> Array:
    """Sigma_t(W)."""
    carried = cov.moved(params["carried"], drift_map) + mean_error(params, drift_map, pairs)
    return cov.mixed(carried, params["carried_classes"], params["new"], params["new_classes"])


def mean_error(params: PyTree, drift_map: Array | None, pairs: cov.PairMoments | None) -> Array:
    """R(W): the second moment of z' - z W, over D_t and the pairs of the stream so far."""
    if "pairs_old" not in params:
        return jnp.zeros_like(params["new"])
    moments = cov.PairMoments(*(params[f"pairs_{name}"] for name in cov.PairMoments._fields))
    if pairs is not None:
        moments = jax.tree.map(jnp.add, moments, pairs)
    return cov.map_error(moments, drift_map) / jnp.maximum(moments.total, 1)


def task_pairs(old: np.ndarray, new: np.ndarray) -> cov.PairMoments:
    """The moments of D_t, for as many pairs as PRIOR_PAIRS: its images are not the old classes'."""
    old, new = np.asarray(old, np.float64), np.asarray(new, np.float64)
    readable = np.isfinite(old).all(axis=1) & np.isfinite(new).all(axis=1)
    old, new = old[readable], new[readable]
    weight = PRIOR_PAIRS / max(len(old), 1)
    return cov.PairMoments(
        weight * old.T @ old, weight * old.T @ new, weight * new.T @ new, np.array(PRIOR_PAIRS * bool(len(old)))
    )


def newest_covariance(params: PyTree, drift_map: Array | None, pairs: cov.PairMoments | None) -> Array:
    """Sigma_new, as if old classes were spread as the newest are."""
    return params["new"]


SOURCES = {"evolved": evolved_covariance, "newest": newest_covariance}


def as_ridge(shrinkage: float) -> float:
    """(1 - s) Sigma + s mu I is, up to scale, Sigma + s / (1 - s) mu I."""
    return shrinkage / max(1 - shrinkage, 1e-4)
