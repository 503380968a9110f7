"""The nearest prototype, by cosine as in the paper or by Euclidean distance."""

import jax
import jax.numpy as jnp

from rose_jax.evolution.core import matmul, score_table
from rose_jax.types import Classifier, ClassMemory, Parts, PyTree


def make(parts: Parts) -> Classifier:
    cosine = parts.config.test.distance == "cosine"
    nearest = nearest_by_cosine if cosine else nearest_by_distance

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        return nearest(memory, feature)

    return Classifier(lambda previous, memory, view: {}, logits, scored_by_evolution=cosine)


PLAIN_COSINE = Classifier(
    lambda previous, memory, view: {},
    lambda params, memory, feature: nearest_by_cosine(memory, feature),
    scored_by_evolution=True,
)  # the paper's, for those who have no config


def nearest_by_cosine(memory: ClassMemory, feature: jax.Array) -> jax.Array:
    """Eq. 3: cos(f(x), p_c) for every seen class (the paper's argmin is of the distance)."""
    unreadable = ~jnp.isfinite(feature).all(axis=1)
    return score_table(feature, jnp.asarray(memory.mean), jnp.asarray(memory.origin) >= 0, unreadable)


def nearest_by_distance(memory: ClassMemory, feature: jax.Array) -> jax.Array:
    """-|f(x) - p_c|^2 up to a term that all classes share."""
    scores = 2 * matmul(feature, memory.mean.T) - jnp.sum(jnp.square(memory.mean), 1)[None, :]
    return jnp.where((memory.origin >= 0)[None, :], scores, -jnp.inf)
