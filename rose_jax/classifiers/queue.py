"""Prototypes in the queue's own metric: the inverse Gram matrix of the new features that an evolution has queued.

Needs nothing but the queue: no label, no covariance, no pass over D_t. Its ridge falls with the number of classes: the
fewer there are, the more of the Gram matrix is what tells them apart. See docs/evolved_metric.md.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.evolution.core import Metric, QueueMetric, score_table
from rose_jax.types import Array, Classifier, ClassMemory, Motion, PyTree, StageView


def make(ridge: float) -> Classifier:
    """params: `transform` [d, d], the metric once a stream has ended, and `ridge` [], rho of the stage.

    ridge: kappa of rho = kappa / C, lambda = rho tr(Q'^T Q') / d, with C the classes seen so far.
    """

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        return begin(memory.mean.shape[1], int((np.asarray(memory.origin) >= 0).sum()), ridge)

    def follow(params: PyTree, memory: ClassMemory, drift_map: Array | None, pairs: PyTree) -> PyTree:
        return params  # the evolver itself keeps the metric up to date

    def learn(params: PyTree, metric: Metric) -> PyTree:
        return params | {"transform": metric.transform}

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        """Before the first evolution this is the plain cosine."""
        bad = ~jnp.isfinite(feature).all(axis=1)
        metric = Metric(jnp.zeros(feature.shape[1]), params["transform"])
        return score_table(feature, jnp.asarray(memory.mean), jnp.asarray(memory.origin) >= 0, bad, metric)

    motion = Motion(follow, lambda params: params, lambda params: QueueMetric(params["ridge"]), learn=learn)
    return Classifier(fit, logits, scored_by_evolution=True, motion=motion, needs=frozenset({"queue"}))


def begin(dim: int, classes: int, ridge: float) -> PyTree:
    """Params before the first evolution."""
    return {"transform": np.eye(dim, dtype=np.float32), "ridge": np.float32(ridge / max(classes, 1))}
