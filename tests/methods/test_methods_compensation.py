"""SDC, ADC, LDC and `own` against float64 oracles written from their formulas, and the cases that break them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import FakeStage, make_parts

from rose_jax.compensation import COMPENSATIONS, adc, ldc, sdc
from rose_jax.config import ADCOptions, Config
from rose_jax.run.scoring import merge
from rose_jax.statistics import drift
from rose_jax.types import ClassMemory


def memory_of(mean, origin) -> ClassMemory:
    return ClassMemory(np.asarray(mean, np.float32), np.asarray(origin, np.int32))


def linear_stage(z_old, matrix, memory=None) -> FakeStage:
    """Stage 1 with the identity and a fixed linear map as encoders."""
    matrix = np.asarray(matrix, np.float32)
    return FakeStage(
        1,
        snapshots=[SimpleNamespace(variables="old"), SimpleNamespace(variables="new", memory=memory)],
        encoder=SimpleNamespace(feature_dim=matrix.shape[0]),
        images=np.asarray(z_old, np.float32),
        encode=lambda variables, images: jnp.asarray(images if variables == "old" else images @ matrix),
    )


def make(name, config=None):
    return COMPENSATIONS[name].make(make_parts(config or Config(), None, 100, (1, 1, 3)))


# SDC


def sdc_oracle(old, new, prototypes, sigma, floor):
    moved = np.zeros_like(prototypes)
    for c, p in enumerate(prototypes):
        w = [np.exp(-np.sum((z - p) ** 2) / (2 * sigma**2)) + floor for z in old]
        moved[c] = sum(wi * (b - a) for wi, a, b in zip(w, old, new, strict=True)) / sum(w)
    return moved


def test_sdc_is_the_weighted_drift():
    rng = np.random.default_rng(0)
    old, new, prototypes = rng.standard_normal((3, 12, 4))
    got = sdc.weighted_drift(old, new, prototypes[:5], 0.7, 1e-5)
    np.testing.assert_allclose(got, sdc_oracle(old, new, prototypes[:5], 0.7, 1e-5), rtol=1e-9)


def test_sdc_far_from_every_image():
    rng = np.random.default_rng(1)
    old, new = rng.standard_normal((2, 9, 4))
    far = np.full((1, 4), 1e3)
    floored = sdc.weighted_drift(old, new, far, 0.3, 1e-5)
    np.testing.assert_allclose(floored[0], (new - old).mean(0), rtol=1e-12)  # every weight is the floor
    # Without it all weights underflow, and the formula's value is the drift of the nearest image.
    nearest = np.argmin(np.square(old - far[0]).sum(1))
    np.testing.assert_allclose(sdc.weighted_drift(old, new, far, 0.3, 0.0)[0], (new - old)[nearest], rtol=1e-12)


def test_sdc_with_one_image():
    old, new, p = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]]), np.array([[5.0, 5.0]])
    np.testing.assert_allclose(sdc.weighted_drift(old, new, p, 0.3, 1e-5), [[-1.0, 2.0]])


def test_sdc_moves_old_classes_only_and_pairs_rows():
    rng = np.random.default_rng(2)
    images, matrix = rng.standard_normal((10, 3)), rng.standard_normal((3, 3)).astype(np.float32)
    view = linear_stage(images, matrix)
    memory = memory_of(rng.standard_normal((4, 3)), [0, 0, 1, -1])
    moved, _ = make("sdc").move(memory, view, jax.random.key(0))
    expected = sdc_oracle(view.images, view.images @ matrix, memory.mean[:2].astype(float), 0.3, 1e-5)
    np.testing.assert_allclose(moved.mean[:2], memory.mean[:2] + expected, rtol=1e-5)
    np.testing.assert_array_equal(moved.mean[2:], memory.mean[2:])


# LDC


def test_ldc_steps_are_adam_on_the_mean_squared_error():
    rng = np.random.default_rng(3)
    dim, lr = 4, 1e-2
    w = rng.standard_normal((dim, dim))
    z_old, z_new = rng.standard_normal((2, 6, dim))
    mask = np.array([1, 1, 1, 1, 0, 0], bool)
    update = ldc.make_update(lr)
    import optax

    got, state = jnp.asarray(w, jnp.float32), optax.adam(lr).init(jnp.asarray(w, jnp.float32))
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, 6):
        got, state = update(got, state, jnp.asarray(z_old), jnp.asarray(z_new), jnp.asarray(mask))
        a, b = z_old[mask], z_new[mask]
        grad = 2 * a.T @ (a @ w - b) / (len(a) * dim)
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(got, w, rtol=1e-4, atol=1e-6)


def test_ldc_recovers_a_linear_drift():
    rng = np.random.default_rng(4)
    config = Config()
    config.ldc.epochs, config.ldc.lr = 400, 3e-2
    images, matrix = rng.standard_normal((18, 3)), rng.standard_normal((3, 3)).astype(np.float32)
    view = linear_stage(images, matrix)
    memory = memory_of(rng.standard_normal((3, 3)), [0, 0, 1])
    moved, drift_map = make("ldc", config).move(memory, view, jax.random.key(0))
    np.testing.assert_allclose(moved.mean[:2], memory.mean[:2] @ matrix, atol=2e-2)
    np.testing.assert_array_equal(moved.mean[2], memory.mean[2])
    np.testing.assert_allclose(drift_map, matrix, atol=2e-2)


# ADC. f(x) = (x A)^2, so that gradients can be written by hand.


def square_apply(variables, images, **_):
    return {"feature": jnp.square(images.reshape(len(images), -1) @ variables)}, None


def adc_oracle(old, new, images, prototypes, options):
    def f(matrix, x):
        return (x.reshape(len(x), -1) @ matrix) ** 2

    moved, failed = prototypes.copy(), 0
    distances = ((f(old, images)[:, None] - prototypes[None]) ** 2).sum(-1)
    for k, p in enumerate(prototypes):
        x0 = images[np.argsort(distances[:, k], kind="stable")[: options.samples]]
        x = x0.copy()
        for _ in range(options.steps):
            hidden = x.reshape(len(x), -1) @ old
            g = ((2 * (hidden**2 - p) * 2 * hidden / hidden.size) @ old.T).reshape(x.shape)
            if options.step_norm == "batch":
                norm = np.sqrt((g**2).sum())
            else:
                norm = np.sqrt((g**2).sum((1, 2, 3), keepdims=True))
            x = np.clip(x - options.alpha * g / norm, images.min(), images.max())
        rivals = moved if options.rivals == "as_moved" else prototypes
        ok = ((f(old, x)[:, None] - rivals[None]) ** 2).sum(-1).argmin(1) == k
        if not ok.any():
            failed += 1
            if options.when_none_succeeds == "stay":
                continue
            ok[:] = True
            x = x0 if options.when_none_succeeds == "unperturbed" else x
        moved[k] = moved[k] + (f(new, x) - f(old, x))[ok].mean(0)
    return moved, failed


@pytest.mark.parametrize("step_norm", ["batch", "image"])
@pytest.mark.parametrize("rivals", ["as_moved", "unmoved"])
def test_adc_follows_the_algorithm(step_norm, rivals):
    rng = np.random.default_rng(5)
    images = rng.standard_normal((14, 2, 2, 1))
    old, new = rng.standard_normal((2, 4, 3))
    prototypes = (images[:4].reshape(4, -1) @ old) ** 2 + 0.3
    options = ADCOptions(samples=6, steps=3, alpha=0.4, step_norm=step_norm, rivals=rivals)
    expected, _ = adc_oracle(old, new, images, prototypes, options)
    got, _ = run_adc(old, new, images, prototypes, options)
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("choice", ["unperturbed", "perturbed", "stay"])
def test_adc_when_the_search_fails(choice):
    rng = np.random.default_rng(6)
    images = 0.1 * rng.standard_normal((8, 2, 2, 1))
    old, new = rng.standard_normal((2, 4, 3))
    prototypes = np.array([[90.0, 90.0, 90.0], [0.0, 0.0, 0.0]])  # out of reach; where all images are
    options = ADCOptions(samples=5, steps=2, alpha=0.05, when_none_succeeds=choice)
    expected, expected_failures = adc_oracle(old, new, images, prototypes, options)
    got, failures = run_adc(old, new, images, prototypes, options)
    assert failures == expected_failures == 1
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    if choice == "stay":
        np.testing.assert_array_equal(got[0], prototypes[0])


def test_adc_with_fewer_images_than_samples_and_no_gradient():
    images = np.zeros((2, 2, 2, 1))  # f = 0 and its gradient vanishes: the images stay, and nothing is NaN
    matrix = np.ones((4, 3))
    got, _ = run_adc(matrix, 2 * matrix, images, np.zeros((1, 3)), ADCOptions(samples=100))
    np.testing.assert_array_equal(got, 0)


def run_adc(old, new, images, prototypes, options):
    images = np.asarray(images, np.float32)
    features = np.asarray(square_apply(jnp.asarray(old), images)[0]["feature"])
    search = adc.make_search(square_apply, options.step_norm)
    return adc.compensate(search, jnp.asarray(old), jnp.asarray(new), images, features, prototypes, options)


# Memories


def test_own_takes_the_objectives_prototypes_and_rose_keeps_its_own():
    carried = memory_of(np.full((4, 2), 1.0), [0, 0, -1, -1])
    snapshot = memory_of([[7, 7], [7, 7], [5, 5], [0, 0]], [0, 0, 1, -1])  # its objective moved classes 0 and 1
    merged = merge(carried, snapshot, 1)
    np.testing.assert_array_equal(merged.mean, [[1, 1], [1, 1], [5, 5], [1, 1]])
    np.testing.assert_array_equal(merged.origin, [0, 0, 1, -1])
    view = linear_stage(np.zeros((1, 2)), np.eye(2), snapshot)
    own, _ = make("own").move(merged, view, None)
    np.testing.assert_array_equal(own.mean[:3], snapshot.mean[:3])
    np.testing.assert_array_equal(own.mean[3], merged.mean[3])  # not seen yet: untouched


def test_paired_features_are_of_the_same_images():
    rng = np.random.default_rng(7)
    images, matrix = rng.standard_normal((7, 3)), rng.standard_normal((3, 3)).astype(np.float32)
    view = linear_stage(images, matrix)
    pairs = drift.paired_features(view, jax.random.key(0), "old", "new")
    assert pairs.old.shape == (7, 3)
    np.testing.assert_allclose(pairs.new, pairs.old @ matrix, rtol=1e-5)
