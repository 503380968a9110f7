"""How a feature becomes a score per class: nearest prototype by cosine or in an evolved metric, or the trained head."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rose_jax.classifiers import whitened
from rose_jax.config import Config
from rose_jax.evolution.core import matmul
from rose_jax.models.heads import head_logits, normalize
from rose_jax.types import Classifier, ClassMemory


def cosine(prototypes: jax.Array, seen: jax.Array, feature: jax.Array) -> jax.Array:
    """Eq. 3: cos(f(x), p_c) for every seen class (the paper's argmin is of the distance)."""
    scores = matmul(normalize(feature), normalize(prototypes).T)  # as precise as the rows that evolve
    return jnp.where(seen[None, :], scores, -jnp.inf)


def euclidean(prototypes: jax.Array, seen: jax.Array, feature: jax.Array) -> jax.Array:
    """-|f(x) - p_c|^2 up to a term that all classes share."""
    scores = 2 * matmul(feature, prototypes.T) - jnp.sum(jnp.square(prototypes), 1)[None, :]
    return jnp.where(seen[None, :], scores, -jnp.inf)


def ncm(config: Config) -> Classifier:
    plain = config.test.distance == "cosine"
    nearest = cosine if plain else euclidean

    def logits(params, memory: ClassMemory, feature):
        return nearest(memory.mean, memory.origin >= 0, feature)

    # An evolution knows the cosine by itself; by any other distance it is scored batch by batch.
    return Classifier(lambda previous, memory, view: {}, logits, metric=(lambda params: None) if plain else None)


def head(config: Config) -> Classifier:
    def fit(previous, memory: ClassMemory, view):
        return view.snapshots[view.stage].head

    def logits(params, memory: ClassMemory, feature):
        """A head trained with rotations as classes has several outputs per class, the upright one first."""
        logits = head_logits(params, feature)
        upright = logits[:, :: logits.shape[1] // len(memory.origin)]
        return jnp.where((memory.origin >= 0)[None, :], upright, -jnp.inf)

    return Classifier(fit, logits)


CLASSIFIER_OPTIONS: dict[str, tuple[str, ...]] = {"whitened": ("metric",)}  # sections of the config that one reads
CLASSIFIERS: dict[str, Callable[[Config], Classifier]] = {"ncm": ncm, "head": head, "whitened": whitened.make}
