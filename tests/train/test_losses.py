"""Losses against float64 NumPy written from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rose_jax.train import losses

N, C, D = 12, 7, 5


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    logits, old_logits = rng.normal(size=(2, N, C)) * 3
    labels = rng.integers(3, 7, N)
    mask = np.arange(N) < 9
    features = rng.normal(size=(N, D))
    return logits, old_logits, labels, mask, features


def f32(*arrays):
    return [jnp.asarray(a, jnp.float32) if np.asarray(a).dtype.kind == "f" else jnp.asarray(a) for a in arrays]


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def test_cross_entropy_runs_over_the_given_classes_and_rows(batch):
    logits, _, labels, mask, _ = batch
    expected = -np.mean([log_softmax(logits[i, 3:7])[labels[i] - 3] for i in range(N) if mask[i]])
    actual = losses.cross_entropy(*f32(logits, labels, mask), jnp.int32(3), jnp.int32(4))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_distillation_has_temperature_and_no_square(batch):
    logits, old_logits, _, mask, _ = batch
    expected = -np.mean(
        [
            np.sum(np.exp(log_softmax(old_logits[i, :3] / 2)) * log_softmax(logits[i, :3] / 2))
            for i in range(N)
            if mask[i]
        ]
    )
    actual = losses.distillation(*f32(logits, old_logits, mask), jnp.int32(3), 2.0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def contrast(features, labels, rows, temperature, denominator):
    """Eq. 5, loop by loop."""
    z = features / np.linalg.norm(features, axis=1, keepdims=True)
    per_anchor = []
    for i in rows:
        positives = [j for j in rows if j != i and labels[j] == labels[i]]
        negatives = [j for j in rows if labels[j] != labels[i]]
        if not positives or (denominator == "negatives" and not negatives):
            continue
        terms = []
        for j in positives:
            above = np.exp(z[i] @ z[j] / temperature)
            others = sum(np.exp(z[i] @ z[k] / temperature) for k in negatives)
            below = {
                "negatives_and_self": above + others,
                "negatives": others,
                "all": others + sum(np.exp(z[i] @ z[k] / temperature) for k in positives),
            }[denominator]
            terms.append(-np.log(above / below))
        per_anchor.append(np.mean(terms))
    return np.mean(per_anchor) if per_anchor else 0.0


@pytest.mark.parametrize("denominator", ["negatives_and_self", "negatives", "all"])
def test_supervised_contrast(batch, denominator):
    _, _, labels, mask, features = batch
    labels = labels.copy()
    labels[0] = 99  # an anchor without positives
    expected = contrast(features, labels, np.flatnonzero(mask), 0.07, denominator)
    actual = losses.supervised_contrastive(*f32(features, labels, mask), 0.07, denominator)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


@pytest.mark.parametrize("denominator", ["negatives_and_self", "negatives", "all"])
@pytest.mark.parametrize("labels", [np.zeros(4, int), np.arange(4)], ids=["no negatives", "no positives"])
def test_contrast_of_a_degenerate_batch_is_finite(denominator, labels):
    features = np.random.default_rng(1).normal(size=(4, D))
    features[0] = 0.0  # a dead feature: its normalisation must not make NaN
    value, gradient = jax.value_and_grad(losses.supervised_contrastive)(
        *f32(features, labels, np.ones(4, bool)), 0.07, denominator
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_contrast_with_a_second_view_compares_with_every_key(batch):
    _, _, labels, mask, features = batch
    keys = np.random.default_rng(2).normal(size=(6, D))
    key_labels = np.array([3, 3, 4, 5, 6, 6])
    z = features / np.linalg.norm(features, axis=1, keepdims=True)
    k = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    similarity = np.exp(z @ k.T / 0.1)
    per_anchor = []
    for i in np.flatnonzero(mask):
        below = similarity[i, key_labels != labels[i]].sum()
        terms = [np.log(1 + below / s) for s in similarity[i, key_labels == labels[i]]]
        if terms:
            per_anchor.append(np.mean(terms))
    actual = losses.supervised_contrastive(
        *f32(features, labels, mask), 0.1, "negatives_and_self", *f32(keys, key_labels)
    )
    np.testing.assert_allclose(actual, np.mean(per_anchor), rtol=1e-4)


@pytest.mark.parametrize("kind", ["squared", "norm"])
def test_projection_loss_and_its_gradients(batch, kind):
    _, _, _, mask, z_old = batch
    rng = np.random.default_rng(3)
    z_new, projector = rng.normal(size=(N, D)), rng.normal(size=(D, D))
    error = (z_old @ projector - z_new)[mask]
    expected = np.mean(error**2) if kind == "squared" else np.mean(np.linalg.norm(error, axis=1))
    arguments = f32(z_old, z_new, projector, mask)
    np.testing.assert_allclose(losses.projection(*arguments, kind), expected, rtol=1e-5)
    to_old, to_new, to_projector = jax.grad(losses.projection, (0, 1, 2))(*arguments, kind)
    assert not np.any(to_old), "no gradient may reach the old encoder"
    assert not np.any(to_new), "no gradient may reach the new encoder"
    if kind == "squared":
        analytic = 2 * z_old[mask].T @ error / error.size
        np.testing.assert_allclose(to_projector, analytic, rtol=1e-4, atol=1e-6)


def test_norm_loss_has_a_gradient_at_zero_error():
    z = jnp.eye(D)
    gradient = jax.grad(losses.projection, 2)(z, z, jnp.eye(D), jnp.ones(D, bool), "norm")
    assert np.isfinite(gradient).all()


def test_padding_rows_never_matter(batch):
    logits, old_logits, labels, mask, features = batch
    poisoned = features.copy()
    poisoned[~mask] = 1e3
    wild = np.where(mask[:, None], logits, 50.0)
    projector = np.eye(D)
    for name, loss in {
        "contrast": lambda z, x: [
            losses.supervised_contrastive(*f32(z, labels, mask), 0.07, kind)
            for kind in ("negatives_and_self", "negatives", "all")
        ],
        "ce": lambda z, x: losses.cross_entropy(*f32(x, labels, mask), jnp.int32(0), jnp.int32(C)),
        "kd": lambda z, x: losses.distillation(*f32(x, old_logits, mask), jnp.int32(3), 2.0),
        "projection": lambda z, x: losses.projection(*f32(z, features, projector, mask), "squared"),
    }.items():
        np.testing.assert_allclose(loss(poisoned, wild), loss(features, logits), rtol=1e-6, err_msg=name)
