"""Within-class covariances: from features, under a drift map, and the whitening that they define.

Estimates are made on the host in float64; what moves with an evolution is float32 on the device.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.evolution.core import matmul, transposed_matmul
from rose_jax.types import Array


class Within(NamedTuple):
    """What the images of a task say about the spread of features around their class mean."""

    shared: np.ndarray  # [d, d] mean of the classes' covariances
    classes: int  # how many these are: those of at least two images
    each: np.ndarray | None  # [C, d, d] of every such class, zeros elsewhere
    has_own: np.ndarray  # bool [C]
    shrinkage: float  # Ledoit and Wolf's, of the pooled residuals


class PairMoments(NamedTuple):
    """Sums over images seen by both encoders: all that the error of a drift map depends on."""

    old: Array  # [d, d] sum z^T z
    cross: Array  # [d, d] sum z^T z'
    new: Array  # [d, d] sum z'^T z'
    total: Array  # [], how many pairs


def within_class(features: np.ndarray, labels: np.ndarray, num_classes: int, each: bool = False) -> Within:
    """features [n, d], labels [n]. Rows that are not finite are left out; so is a class of one image."""
    features = np.asarray(features, np.float64)
    readable = np.isfinite(features).all(axis=1)
    features, labels = features[readable], np.asarray(labels)[readable]
    dim = features.shape[1]
    shared, own = np.zeros((dim, dim)), np.zeros((num_classes, dim, dim)) if each else None
    has_own = np.bincount(labels, minlength=num_classes) >= 2
    residuals = []
    for c in np.flatnonzero(has_own):
        rows = features[labels == c]
        residual = rows - rows.mean(0)
        covariance = residual.T @ residual / (len(rows) - 1)
        shared += covariance
        residuals.append(residual)
        if own is not None:
            own[c] = covariance
    classes = len(residuals)
    pooled = np.concatenate(residuals) if residuals else np.zeros((0, dim))
    return Within(shared / max(classes, 1), classes, own, has_own, ledoit_wolf(pooled))


def ledoit_wolf(residuals: np.ndarray) -> float:
    """The weight of mu I in the best mixture with the covariance of rows of mean 0 (Ledoit and Wolf 2004).

    The share of the covariance's distance to mu I that is its own sampling error; residuals [n, d].
    """
    n, dim = residuals.shape
    if not residuals.any():
        return 0.0
    covariance = residuals.T @ residuals / n
    scale = np.trace(covariance) / dim
    distance = np.square(covariance).sum() - dim * scale**2
    error = (np.square(np.square(residuals).sum(1)).mean() - np.square(covariance).sum()) / n
    return float(np.clip(error / distance, 0, 1)) if distance > 0 else 1.0


def moved(covariance: Array, drift_map: Array | None) -> Array:
    """W^T Sigma W of [..., d, d]: the covariance of z W for rows z of covariance Sigma."""
    if drift_map is None:
        return covariance
    return symmetric(matmul(matmul(drift_map.T, covariance), drift_map))


def no_pairs(dim: int) -> PairMoments:
    zero = jnp.zeros((dim, dim))
    return PairMoments(zero, zero, zero, jnp.zeros(()))


def add_pairs(moments: PairMoments, z_old: Array, z_new: Array, enters: Array) -> PairMoments:
    """With the pairs [n, d] of the rows that enter; those with NaN or Inf do not."""
    enters &= jnp.isfinite(z_old).all(axis=1) & jnp.isfinite(z_new).all(axis=1)
    z_old, z_new = (jnp.where(enters[:, None], z, 0) for z in (z_old, z_new))
    both = transposed_matmul(z_old, jnp.concatenate([z_old, z_new], axis=1))
    dim = z_old.shape[1]
    return PairMoments(
        moments.old + both[:, :dim],
        moments.cross + both[:, dim:],
        moments.new + transposed_matmul(z_new, z_new),
        moments.total + enters.sum(),
    )


def map_error(moments: PairMoments, drift_map: Array | None) -> Array:
    """sum e^T e [d, d] of the errors e = z' - z W of a drift map on the pairs."""
    if drift_map is None:
        return moments.new - moments.cross - moments.cross.T + moments.old
    pulled = matmul(drift_map.T, moments.cross - matmul(moments.old, drift_map) / 2)
    return moments.new - pulled - pulled.T


def mixed(first: Array, first_weight: Array, second: Array, second_weight: Array) -> Array:
    """The mean of two matrices by weight; zeros if there is none."""
    total = first_weight + second_weight
    return (first_weight * first + second_weight * second) / jnp.maximum(total, 1)


def whitening(covariance: Array, ridge: Array | float) -> tuple[jax.Array, jax.Array]:
    """(Sigma + ridge tr(Sigma)/d I)^(-1/2) [d, d], and log det of what is in the brackets.

    Finite whatever Sigma is: directions without variance get what float32 resolves beside the largest, and a
    covariance of zero, of which nothing is known, whitens nothing.
    """
    dim = covariance.shape[0]
    scale = jnp.trace(covariance) / dim
    known = scale > jnp.finfo(covariance.dtype).tiny
    scale = jnp.where(known, scale, 1)
    values, vectors = jnp.linalg.eigh(symmetric(covariance) / scale)
    values = jnp.maximum(values, 0) + ridge
    values = jnp.maximum(values, dim * jnp.finfo(values.dtype).eps * jnp.max(values))
    values = jnp.where(known, values, 1)
    transform = matmul(vectors * jax.lax.rsqrt(values)[None, :], vectors.T) * jax.lax.rsqrt(scale)
    return transform, jnp.sum(jnp.log(values * scale))


def symmetric(matrix: Array) -> jax.Array:
    return (jnp.asarray(matrix) + jnp.swapaxes(matrix, -1, -2)) / 2
