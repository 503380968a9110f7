"""Uncentred second moments of classes, what they span, and how both move. Estimates are float64 on the host."""

from typing import NamedTuple

import numpy as np

from rose_jax.evolution.core import matmul
from rose_jax.statistics.covariance import moved
from rose_jax.types import Array


class Sums(NamedTuple):
    """Over the images of a task."""

    gram: np.ndarray  # [d, d] sum z^T z
    total: np.ndarray  # [C, d] sum z of each class


def class_sums(features: np.ndarray, labels: np.ndarray, num_classes: int) -> Sums:
    """features [n, d], labels [n]. Rows that are not finite are left out."""
    features, labels = readable(features, labels)
    total = np.zeros((num_classes, features.shape[1]))
    np.add.at(total, labels, features)
    return Sums(features.T @ features, total)


def readable(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    features = np.asarray(features, np.float64)
    finite = np.isfinite(features).all(axis=1)
    return features[finite], np.asarray(labels)[finite]


def row_space(moment: np.ndarray, threshold: float) -> tuple[np.ndarray, int]:
    """U U^T [d, d] of the singular vectors with a singular value above threshold x the largest, and how many.

    moment: [d, d], symmetric and non-negative. With threshold 0, rounding decides: it makes most zeros positive.
    """
    vectors, values, _ = np.linalg.svd(np.asarray(moment, np.float64), hermitian=True)
    vectors = vectors[:, values > threshold * values[0]]
    return vectors @ vectors.T, vectors.shape[1]


def least_squares(old: np.ndarray, new: np.ndarray, lam: float) -> np.ndarray:
    """(old^T old + lam I)^-1 old^T new [d, d], float64, for rows [n, d] of both.

    In a direction that no image has, this is 0 / lam. There a lam of 1e-9 would only magnify rounding errors, so
    that directions which float64 cannot tell from such are left out.
    """
    finite = np.isfinite(old).all(axis=1) & np.isfinite(new).all(axis=1)
    old, new = (np.asarray(z, np.float64)[finite] for z in (old, new))
    values, vectors = np.linalg.eigh(old.T @ old)
    kept = values > len(values) * np.finfo(np.float64).eps * max(values[-1], 0)
    values, vectors = values[kept], vectors[:, kept]
    return vectors @ ((vectors.T @ (old.T @ new)) / (values + lam)[:, None])


def moved_within(moment: Array, drift_map: Array, span: Array) -> Array:
    """W_c^T Phi_c W_c with W_c = W Pi_c."""
    return moved(moment, matmul(drift_map, span))
