"""Mean and covariance of a set of features that grows task by task and moves along with the encoder."""

from typing import NamedTuple

import jax.numpy as jnp

from rose_jax.evolution.core import matmul
from rose_jax.statistics.covariance import moved
from rose_jax.types import Array


class Moments(NamedTuple):
    images: Array  # float32 []
    mean: Array  # [d]
    covariance: Array  # [d, d]


def no_moments(dim: int) -> Moments:
    return Moments(jnp.zeros(()), jnp.zeros(dim), jnp.zeros((dim, dim)))


def moments_of(rows: Array, weight: Array) -> Moments:
    """Of the rows [n, d] where weight [n] is 1 and not 0; the covariance is over n - 1."""
    count, column = jnp.sum(weight), jnp.asarray(weight)[:, None]
    mean = jnp.sum(rows * column, 0) / jnp.maximum(count, 1.0)
    centred = (rows - mean[None, :]) * column
    return Moments(count, mean, matmul(centred.T, centred) / jnp.maximum(count - 1.0, 1.0))


def transported(moments: Moments, linear_map: Array) -> Moments:
    """mu W and W^T Sigma W: of a mixture these are the mixture of what has been transported."""
    mean = matmul(jnp.asarray(moments.mean)[None, :], linear_map)[0]
    return moments._replace(mean=mean, covariance=moved(moments.covariance, linear_map))


def mixed(first: Moments, second: Moments) -> Moments:
    """mu = sum pi_k mu_k, Sigma = sum pi_k (Sigma_k + (mu_k - mu)(mu_k - mu)^T), with pi_k by numbers of images.

    Of two parts the second term is pi_1 pi_2 (mu_1 - mu_2)(mu_1 - mu_2)^T.
    """
    count = first.images + second.images
    share = first.images / jnp.maximum(count, 1.0)
    mean = share * first.mean + (1 - share) * second.mean
    apart = jnp.asarray(first.mean - second.mean)
    within = share * first.covariance + (1 - share) * second.covariance
    return Moments(count, mean, within + share * (1 - share) * jnp.outer(apart, apart))
