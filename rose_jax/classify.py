"""How a feature becomes a score per class: nearest prototype by cosine, or the trained head."""

import jax
import jax.numpy as jnp

from rose_jax.evolution.core import matmul
from rose_jax.models.heads import head_logits, normalize
from rose_jax.types import Classifier, ClassMemory


def cosine(prototypes: jax.Array, seen: jax.Array, feature: jax.Array) -> jax.Array:
    """Eq. 3: cos(f(x), p_c) for every seen class (the paper's argmin is of the distance)."""
    scores = matmul(normalize(feature), normalize(prototypes).T)  # as precise as the rows that evolve
    return jnp.where(seen[None, :], scores, -jnp.inf)


def _fit_nothing(previous, memory, view):
    return {}


def _ncm_logits(params, memory: ClassMemory, feature):
    return cosine(memory.mean, memory.origin >= 0, feature)


def _fit_head(previous, memory, view):
    return view.snapshots[view.stage].head


def _head_logits(params, memory: ClassMemory, feature):
    """A head that was trained with rotations as classes has several outputs per class, the upright one first."""
    logits = head_logits(params, feature)
    upright = logits[:, :: logits.shape[1] // len(memory.origin)]
    return jnp.where((memory.origin >= 0)[None, :], upright, -jnp.inf)


CLASSIFIERS = {
    "ncm": Classifier(_fit_nothing, _ncm_logits),
    "head": Classifier(_fit_head, _head_logits),
}
