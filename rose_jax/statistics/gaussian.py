"""Classes as Gaussians in feature space: moments, and factors to sample from. On the host, in float64."""

import numpy as np


def class_moments(
    features: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean [C, d], unbiased covariance [C, d, d] and number of images [C] of each class.

    A class of one image has covariance 0 (the unbiased one is 0/0), a class without any also mean 0.
    """
    features = np.asarray(features, np.float64)
    dim = features.shape[1]
    mean, covariance = np.zeros((num_classes, dim)), np.zeros((num_classes, dim, dim))
    counts = np.bincount(labels, minlength=num_classes)
    for c in np.flatnonzero(counts):
        own = features[labels == c]
        mean[c] = own.mean(0)
        centred = own - mean[c]
        covariance[c] = centred.T @ centred / max(len(own) - 1, 1)
    return mean, covariance, counts


def class_variances(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """tr(covariance) / d of each class [C], without forming covariances."""
    features = np.asarray(features, np.float64)
    variances = np.zeros(num_classes)
    for c in np.unique(labels):
        own = features[labels == c]
        variances[c] = np.square(own - own.mean(0)).sum() / max(len(own) - 1, 1) / features.shape[1]
    return variances


def mean_deviation(features: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the standard deviations (biased, as np.std's) of all classes and dimensions."""
    features = np.asarray(features, np.float64)
    return float(np.mean([features[labels == c].std(0) for c in np.unique(labels)]))


def sampling_factor(covariance: np.ndarray, jitter: float = 1e-5) -> np.ndarray:
    """L [..., d, d] with L L^T = covariance + jitter I, so that mean + L N(0, 1) is a sample.

    The jitter makes a singular covariance (fewer images than dimensions, dead channels) positive definite.
    """
    return np.linalg.cholesky(covariance + jitter * np.eye(covariance.shape[-1]))
