"""FeCAM's covariances (Goswami et al., NeurIPS 2023): Tukey's transform, shrinkage, correlation. Host, float64.

Fewer images than dimensions and dead channels make a covariance singular; what is inverted has been shrunk, or is
inverted where it is not zero.
"""

from typing import NamedTuple

import numpy as np

from rose_jax.errors import UserError


class Inverse(NamedTuple):
    """pinv(Sigma) = A diag(s) A^T. As a factor it needs no float64 where distances are taken."""

    factor: np.ndarray  # A [d, d]
    sign: np.ndarray  # s [d]: 1, or -1 where shrinkage has made an eigenvalue negative


def readable(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """features [n, d] in float64 and labels [n], without the rows that are not finite."""
    features = np.asarray(features, np.float64)
    rows = np.isfinite(features).all(axis=1)
    return features[rows], np.asarray(labels)[rows]


def tukey(features: np.ndarray, beta: float) -> np.ndarray:
    """x^beta, which makes the skewed features of a ReLU more Gaussian."""
    if beta != 1 and (features < 0).any():
        raise UserError(
            f"FeCAM's x^beta (config.fecam.beta {beta}) needs features that are not negative, and the encoder gives "
            f"{features.min():.3g}. Use one that ends in a ReLU, or config.fecam.beta=1."
        )
    return features**beta


def total_scatter(features: np.ndarray) -> np.ndarray:
    """Unbiased covariance [d, d] of rows [n, d] about their common mean."""
    if len(features) < 2:
        raise UserError(f"A covariance needs at least two images, and here there are {len(features)}.")
    centred = features - features.mean(0)
    return centred.T @ centred / (len(features) - 1)


def shrunk(covariance: np.ndarray, alpha1: float, alpha2: float, mean_of: str = "nonzero") -> np.ndarray:
    """Sigma + alpha1 V1 I + alpha2 V2 (1 - I): V1 is the mean variance, V2 the mean covariance.

    mean_of: "nonzero" leaves entries of dead channels out of V2, as FeCAM's code does; "all" does not.
    """
    off = ~np.eye(len(covariance), dtype=bool)
    entries = covariance[off & (covariance != 0)] if mean_of == "nonzero" else covariance[off]
    mean_covariance = entries.mean() if entries.size else 0.0
    return covariance + np.where(off, alpha2 * mean_covariance, alpha1 * np.diagonal(covariance).mean())


def correlation(covariance: np.ndarray) -> np.ndarray:
    """Sigma_ij / sqrt(Sigma_ii Sigma_jj); 0 for a channel without variance."""
    deviation = np.sqrt(np.diagonal(covariance))
    inverse = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return covariance * np.outer(inverse, inverse)


def inverse_factor(covariance: np.ndarray) -> Inverse:
    """Of the pseudo-inverse: eigenvalues that float64 cannot tell from 0 beside the largest are left out."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    size = np.abs(values)
    known = size > len(values) * np.finfo(np.float64).eps * size.max()
    scale = np.divide(1.0, np.sqrt(size), out=np.zeros_like(size), where=known)
    return Inverse(vectors * scale, np.sign(values))
