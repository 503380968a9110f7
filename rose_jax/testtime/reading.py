"""How test-time methods read classes from features: logits for their losses, scores for the predictions.

With cosines alone nearly every softmax is flat (over 100 classes a perfect match has an entropy of 4.60 of at most 4.61), and
no loss has a gradient. So logits are s cos(z, p_c), with the prototypes frozen and s fitted on D_t.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.models.heads import head_logits, normalize
from rose_jax.types import Array, Classifier, ClassMemory, PyTree

NEG = -1e30  # stands for -inf where a gradient passes
STEPS = 60  # of the bisection: far below float32


class Reader(NamedTuple):
    kind: str  # "prototypes" or "head"
    memory: ClassMemory
    scale: Array  # s []
    head: PyTree  # the trained one, or None where it is not read
    classifier: Classifier | None = None  # of the row
    params: PyTree = None  # the classifier's

    @property
    def seen(self) -> jax.Array:
        """bool [C]."""
        return jnp.asarray(self.memory.origin) >= 0

    def logits(self, feature: jax.Array, head: PyTree = None) -> jax.Array:
        """feature [n, d] -> [n, C], for losses. head: one that the method has changed, instead of the trained one."""
        if self.kind == "prototypes":
            values = self.scale * (normalize(feature) @ normalize(self.memory.mean).T)
        else:  # one that was trained with rotations as classes has several outputs per class, the upright one first
            outputs = head_logits(self.head if head is None else head, feature)
            values = outputs[:, :: outputs.shape[1] // len(self.memory.origin)]
        return jnp.where(self.seen[None, :], values, NEG)

    def scores(self, feature: jax.Array) -> jax.Array:
        """feature [n, d] -> [n, C], by which the row's classifier predicts."""
        assert self.classifier is not None
        return self.classifier.logits(self.params, self.memory, feature)


def fit_scale(features: np.ndarray, labels: np.ndarray, memory: ClassMemory, largest: float) -> float:
    """The s in 1..largest of the highest likelihood of labels [n] under softmax(s cos(z, p_c)) over the seen classes.

    -log likelihood is convex in s; where its slope mean(E_p[cos] - cos_y) changes sign, it is least.
    """
    seen = np.asarray(memory.origin) >= 0
    place = np.cumsum(seen) - 1
    readable = np.isfinite(features).all(1)
    rows, prototypes = (np.asarray(x, np.float64) for x in (features[readable], np.asarray(memory.mean)[seen]))
    if not len(rows):
        return 1.0
    cosines = _unit(rows) @ _unit(prototypes).T
    own = cosines[np.arange(len(rows)), place[labels[readable]]]

    def slope(scale: float) -> float:
        weight = np.exp(scale * (cosines - cosines.max(1, keepdims=True)))
        expected = (weight * cosines).sum(1) / weight.sum(1)
        return float((expected - own).mean())

    low, high = 1.0, largest
    if slope(low) >= 0:
        return low
    if slope(high) <= 0:
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return (low + high) / 2


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
