"""FeTrIL's pseudo-features (Petit et al., WACV 2023): features of a new class, moved to where an old one was."""

import numpy as np

from rose_jax.errors import UserError
from rose_jax.statistics.drift import old_classes, squared_distances
from rose_jax.statistics.shrinkage import readable
from rose_jax.types import ClassMemory, StageView


def nearest_new(old: np.ndarray, new: np.ndarray, kind: str) -> np.ndarray:
    """For each mean in old [k, d], the index [k] of the nearest in new [m, d]: "euclidean" or "cosine"."""
    if kind == "euclidean":
        return squared_distances(old, new).argmin(1)
    old, new = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (old, new))
    return (old @ new.T).argmax(1)


def features_of_all_classes(memory: ClassMemory, view: StageView, nearest: str) -> tuple[np.ndarray, np.ndarray]:
    """D_t's features, and f + mu_p - mu_n for each old class p from its nearest new class n: [n, d] float64, labels."""
    features, labels = readable(*view.train_features(view.stage))
    mean = np.asarray(memory.mean, np.float64)
    old, new = old_classes(memory, view.stage), np.unique(labels)
    if not len(new):
        raise UserError(f"FeTrIL has no image of task {view.stage + 1} whose feature is finite.")
    rows, all_labels = [features], [labels]
    for p, n in zip(old, new[nearest_new(mean[old], mean[new], nearest)] if len(old) else (), strict=True):
        own = features[labels == n]
        rows.append(own + mean[p] - mean[n])
        all_labels.append(np.full(len(own), p))
    return np.concatenate(rows), np.concatenate(all_labels)
