"""Covariances and whitening against float64, scikit-learn, and what must not go wrong."""

import jax
import jax.numpy as jnp
import metric_oracle as oracle
import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf_shrinkage

from rose_jax.statistics import covariance as cov

RNG = np.random.default_rng(0)


def test_within_class_covariance_is_the_mean_over_classes_of_two_images_or_more():
    features, labels = RNG.normal(size=(21, 4)), np.repeat([1, 4, 5], [10, 10, 1])
    features[3] = np.nan
    found = cov.within_class(features, labels, 7, each=True)
    first, second = np.cov(np.delete(features[:10], 3, 0).T), np.cov(features[10:20].T)
    np.testing.assert_allclose(found.shared, (first + second) / 2)
    np.testing.assert_allclose(found.each[[1, 4]], [first, second])
    assert found.classes == 2
    assert np.flatnonzero(found.has_own).tolist() == [1, 4]
    assert not found.each[[0, 2, 3, 5, 6]].any()


@pytest.mark.parametrize("rows", [5, 40, 4000])
def test_shrinkage_is_ledoit_and_wolf_s(rows):
    residuals = RNG.normal(size=(rows, 12)) * np.linspace(0.1, 3, 12)
    expected = ledoit_wolf_shrinkage(residuals, assume_centered=True)
    assert cov.ledoit_wolf(residuals) == pytest.approx(expected, rel=1e-9)
    assert cov.ledoit_wolf(np.zeros((rows, 12))) == 0


def test_covariance_of_mapped_features():
    z, drift_map = RNG.normal(size=(200, 5)), RNG.normal(size=(5, 5))
    moved = cov.moved(jnp.asarray(np.cov(z.T), jnp.float32), jnp.asarray(drift_map, jnp.float32))
    np.testing.assert_allclose(moved, np.cov((z @ drift_map).T), rtol=1e-4, atol=1e-5)
    assert cov.moved(moved, None) is moved


@pytest.mark.parametrize("ridge", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_whitening(ridge, scale):
    sigma = np.cov(RNG.normal(size=(100, 16)).T) * scale**2
    transform, log_det = jax.jit(cov.whitening)(jnp.asarray(sigma, jnp.float32), ridge)
    np.testing.assert_allclose(transform, oracle.whitening(sigma, ridge), rtol=1e-3, atol=2e-4 / scale)
    np.testing.assert_allclose(
        log_det, np.linalg.slogdet(sigma + ridge * np.trace(sigma) / 16 * np.eye(16))[1], rtol=1e-3, atol=1e-2
    )


def singular(kind):
    z = RNG.normal(size=(40, 16))
    if kind == "dead channels":
        z[:, 3:9] = 0
    if kind == "fewer images than dimensions":
        z = z[:4]
    if kind == "one direction":
        z = np.outer(z[:, 0], z[0])
    return np.cov(z.T) if kind != "zero" else np.zeros((16, 16))


@pytest.mark.parametrize("ridge", [0.0, 0.03])
@pytest.mark.parametrize("kind", ["dead channels", "fewer images than dimensions", "one direction", "zero"])
def test_a_singular_covariance_gives_a_finite_metric(kind, ridge):
    sigma = singular(kind)
    transform, log_det = cov.whitening(jnp.asarray(sigma, jnp.float32), ridge)
    assert np.isfinite(transform).all()
    assert np.isfinite(log_det)
    if kind == "zero":
        np.testing.assert_allclose(transform, np.eye(16), atol=1e-6)
    elif ridge:
        np.testing.assert_allclose(transform, oracle.whitening(sigma, ridge), rtol=1e-3, atol=1e-3)


def test_an_indefinite_covariance_gives_a_finite_metric():
    sigma = jnp.diag(jnp.asarray([-1.0, 2.0, 3.0]))  # total less between may be
    assert np.isfinite(cov.whitening(sigma, 0.0)[0]).all()
    assert np.isfinite(cov.whitening(-sigma, 0.0)[0]).all()
