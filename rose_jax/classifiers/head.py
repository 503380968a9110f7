"""The head that was trained along with the encoder."""

import jax
import jax.numpy as jnp

from rose_jax.models.heads import head_logits
from rose_jax.types import Classifier, ClassMemory, Parts, PyTree, StageView


def make(parts: Parts) -> Classifier:
    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        return view.snapshots[view.stage].head

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        """A head trained with rotations as classes has several outputs per class, the upright one first."""
        scores = head_logits(params, feature)
        upright = scores[:, :: scores.shape[1] // len(memory.origin)]
        return jnp.where((memory.origin >= 0)[None, :], upright, -jnp.inf)

    return Classifier(fit, logits)
