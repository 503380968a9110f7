"""What several methods read of D_t when a task has ended: features of the same images under both encoders."""

from typing import NamedTuple

import jax
import numpy as np

from rose_jax.types import Augment, ClassMemory, PyTree, StageView


class Pairs(NamedTuple):
    """Row i of both sides is the same image, augmented once. Host arrays, for sums in float64."""

    old: np.ndarray  # [n, d] under f_{t-1}
    new: np.ndarray  # [n, d] under f_t
    labels: np.ndarray  # [n], internal


def paired_features(
    view: StageView, key: jax.Array, old: PyTree, new: PyTree, transform: Augment | None = None
) -> Pairs:
    """One pass over D_t; old and new are the variables of f_{t-1} and f_t."""
    parts = []
    for images, labels, mask in view.train_batches(key, 1, transform):
        rows = np.asarray(mask)
        both = (np.asarray(view.encode(variables, images))[rows] for variables in (old, new))
        parts.append((*both, np.asarray(labels)[rows]))
    return Pairs(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def augmented_features(view: StageView, key: jax.Array, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, d] of one pass over D_t under one encoder, and internal labels [n]."""
    features, classes = [], []
    for images, labels, mask in view.train_batches(key, 1):
        rows = np.asarray(mask)
        features.append(np.asarray(view.encode(variables, images))[rows])
        classes.append(np.asarray(labels)[rows])
    return np.concatenate(features), np.concatenate(classes)


def old_classes(memory: ClassMemory, stage: int) -> np.ndarray:
    """Classes of earlier tasks: the ones whose prototypes have to move."""
    origin = np.asarray(memory.origin)
    return np.flatnonzero((origin >= 0) & (origin < stage))


def replace_means(memory: ClassMemory, classes: np.ndarray, means: np.ndarray) -> ClassMemory:
    """The memory with other prototypes [k, d] for some classes [k]."""
    mean = np.array(memory.mean)
    mean[classes] = means
    return memory._replace(mean=mean)


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a_i - b_j|^2 for rows of a [k, d] and b [n, d], in float64: [k, n]."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T, 0.0)
