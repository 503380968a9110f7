"""EFC's losses, samples, matrix and drift against float64 oracles; the cases without a covariance or a spread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder as tiny
from support import FakeStage, make_parts

from rose_jax.config import Config
from rose_jax.statistics.drift import Pairs
from rose_jax.statistics.gaussian import class_moments, class_variances, sampling_factor
from rose_jax.train.objectives import efc, make_objective
from rose_jax.types import Batch, ClassMemory, Snapshot, Task

CLASSES, BATCH = 6, 4


def objective(config=None):
    transform = lambda key, images: images.astype(jnp.float32)  # noqa: E731
    parts = make_parts(config or make_config(), tiny.encoder(), CLASSES, tiny.SHAPE, transform)
    return make_objective("efc", parts)


def make_config() -> Config:
    config = Config()
    config.scenario.tasks = 3
    config.efc.prototype_batch = 8
    config.efc.recipe.batch_size = BATCH
    return config


def task(index: int) -> Task:
    return Task(jnp.int32(index), jnp.int32(2 * index), jnp.int32(2), jnp.float32(0.1))


def snapshot(seed: int, index: int = 0) -> Snapshot:
    rng = np.random.default_rng(seed)
    root = 0.3 * rng.standard_normal((CLASSES, tiny.DIM, tiny.DIM))
    extra = {
        "efm": root[0] @ root[0].T,
        "mean": rng.standard_normal((CLASSES, tiny.DIM)),
        "factor": np.tril(root),
    }
    seen = 2 * (index + 1)
    origin = np.where(np.arange(CLASSES) < seen, np.arange(CLASSES) // 2, -1)
    return Snapshot(
        tiny.variables(seed),
        {"weight": jnp.asarray(rng.standard_normal((CLASSES, tiny.DIM)), jnp.float32)},
        jnp.eye(tiny.DIM),
        ClassMemory(jnp.asarray(extra["mean"], jnp.float32), jnp.asarray(origin, jnp.int32)),
        {name: jnp.asarray(x, jnp.float32) for name, x in extra.items()},
    )


def batch(seed: int, offset: int) -> Batch:
    rng = np.random.default_rng(seed)
    images = jnp.asarray(rng.standard_normal((BATCH, *tiny.SHAPE)), jnp.float32)
    labels = jnp.asarray(offset + np.arange(BATCH) % 2, jnp.int32)
    return Batch(images, labels, jnp.array([True, True, True, False]))


@jax.jit
def draw_counts(keys, n_old, seen):
    return jax.vmap(lambda key: jnp.stack(efc.rehearsal_counts(key, n_old, seen, 64, 100)))(keys)


sample = jax.jit(efc.sample_prototypes, static_argnums=4)


def numpy(x):
    return np.asarray(x, np.float64)


def test_first_task_is_cross_entropy_over_classes_and_rotations():
    made = objective()
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), None, task(0))
    data = batch(0, 0)
    got, (after, *_) = jax.jit(made.loss)(trainable, kept, None, data, task(0), jax.random.key(1))
    valid = np.asarray(data.mask)
    images, labels = np.asarray(data.images)[valid], np.asarray(data.labels)[valid]
    turned = np.concatenate([np.rot90(images, k, (1, 2)) for k in range(4)])
    targets = np.concatenate([labels] + [2 + 3 * labels + k for k in range(3)])
    z = tiny.features({"params": trainable["encoder"], "batch_stats": kept["norm"]}, turned, "batch")
    auxiliary = z @ numpy(trainable["auxiliary"]["weight"]).T + numpy(trainable["auxiliary"]["bias"])
    logits = np.concatenate([z @ numpy(trainable["head"]["weight"])[:2].T, auxiliary], 1)
    assert logits.shape[1] == 8
    assert float(got) == pytest.approx(tiny.mean_ce(logits, targets), rel=1e-5)
    assert not np.allclose(after["norm"]["mean"], kept["norm"]["mean"])  # BatchNorm still learns


def later_oracle(trainable, kept, prev, data, key, config):
    """The printed loss, given the random numbers that the code draws for this key."""
    count_key, sample_key = jax.random.split(key)
    n_old, n_new = jax.jit(lambda k: efc.rehearsal_counts(k, 2, 4, BATCH, CLASSES))(count_key)
    samples, sample_labels = sample(
        sample_key, prev.extra["mean"], prev.extra["factor"], jnp.int32(2), config.efc.prototype_batch
    )
    buffer = kept["buffer"]
    if int(buffer["count"]) == 0:
        n_old, n_new = config.efc.prototype_batch, 0
    n_new = min(int(n_new), int(buffer["count"]))
    valid = np.asarray(data.mask)
    images, labels = np.asarray(data.images)[valid], np.asarray(data.labels)[valid]
    variables = {"params": trainable["encoder"], "batch_stats": kept["norm"]}
    weight = numpy(trainable["head"]["weight"])
    z, z_old = tiny.features(variables, images), tiny.features(prev.variables, images)
    ce = tiny.mean_ce((z @ weight.T)[:, 2:4], labels - 2)
    e = config.efc.efm_weight * numpy(prev.extra["efm"]) + config.efc.damping * np.eye(tiny.DIM)
    penalty = np.mean([d @ e @ d for d in z - z_old])
    rows = np.concatenate([numpy(samples)[: int(n_old)], tiny.features(variables, buffer["images"])[:n_new]])
    targets = np.concatenate([np.asarray(sample_labels)[: int(n_old)], np.asarray(buffer["labels"])[:n_new]])
    rehearsal = tiny.mean_ce((rows @ weight.T)[:, :4], targets)
    projector = np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2)
    return ce + penalty + rehearsal + projector


def test_later_task_with_and_without_a_previous_batch():
    config = make_config()
    made, prev = objective(config), snapshot(1)
    loss = jax.jit(made.loss)
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), prev, task(1))
    np.testing.assert_array_equal(trainable["head"]["weight"][:2], prev.head["weight"][:2])
    assert "auxiliary" not in trainable
    trainable["encoder"] = tiny.variables(2)["params"]  # else there is no drift
    for step in range(2):
        data, key = batch(10 + step, 2), jax.random.key(step)
        expected = later_oracle(trainable, kept, prev, data, key, config)
        got, (after, *_) = loss(trainable, kept, prev, data, task(1), key)
        assert float(got) == pytest.approx(expected, rel=2e-5)
        np.testing.assert_array_equal(after["norm"]["mean"], kept["norm"]["mean"])  # frozen
        np.testing.assert_array_equal(after["buffer"]["images"], data.images)
        assert int(after["buffer"]["count"]) == 3
        kept = after


def test_later_tasks_freeze_batch_norm_and_train_old_heads():
    made, prev = objective(), snapshot(1)
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), prev, task(1))

    @jax.jit
    def first_update(trainable, data):
        transform = made.optimizer(jnp.float32(1e-2), task(1), trainable)
        grads = jax.grad(lambda t: made.loss(t, kept, prev, data, task(1), jax.random.key(0))[0])(trainable)
        return grads, transform.update(grads, transform.init(trainable), trainable)[0]

    grads, updates = first_update(trainable, batch(0, 2))
    layer = updates["encoder"]["layer"]
    assert np.any(np.asarray(grads["encoder"]["layer"]["scale"]) != 0)
    np.testing.assert_array_equal(layer["scale"], 0)
    np.testing.assert_array_equal(layer["bias"], 0)
    assert np.all(np.asarray(updates["head"]["weight"][:4]) != 0)
    assert np.any(np.asarray(layer["kernel"]) != 0)


def test_projector_sends_no_gradient_into_the_encoder():
    made, prev = objective(), snapshot(1)
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), prev, task(1))
    data = batch(0, 2)

    def projector_term(t):
        return made.loss(t, kept, prev, data, task(1), jax.random.key(0))[1][1]["projector"]

    trainable["encoder"] = tiny.variables(3)["params"]
    grads = jax.jit(jax.grad(projector_term))(trainable)
    assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves((grads["encoder"], grads["head"])))
    assert np.any(np.asarray(grads["projector"]) != 0)


@pytest.mark.parametrize(
    ("n_old", "seen", "total"), [(10, 20, 40), (30, 40, 64), (90, 100, 64), (1, 2, 4), (2, 32, 64)]
)
def test_rehearsal_counts(n_old, seen, total):
    drawn = np.asarray(draw_counts(jax.random.split(jax.random.key(0), 200), jnp.int32(n_old), jnp.int32(seen)))
    np.testing.assert_array_equal(drawn.sum(1), total)
    assert drawn[:, 0].mean() == pytest.approx(total * n_old / seen, rel=0.05)
    if 2 * seen <= 64:
        np.testing.assert_array_equal(drawn[:, 0], 2 * n_old)  # every id twice: nothing left to chance


def test_samples_come_evenly_from_old_classes_with_their_moments():
    rng = np.random.default_rng(0)
    n = 60_000
    root = rng.standard_normal((4, 2, 3))
    covariance = np.einsum("ckd,cke->cde", root, root)  # rank 2 of 3: singular
    mean = rng.standard_normal((4, 3))
    factor = sampling_factor(covariance)
    samples, labels = sample(
        jax.random.key(0), jnp.asarray(mean, jnp.float32), jnp.asarray(factor, jnp.float32), jnp.int32(3), n
    )
    samples, labels = np.asarray(samples), np.asarray(labels)
    np.testing.assert_array_equal(np.bincount(labels, minlength=4), [n // 3, n // 3, n // 3, 0])
    for c in range(3):
        np.testing.assert_allclose(samples[labels == c].mean(0), mean[c], atol=0.06)
        np.testing.assert_allclose(np.cov(samples[labels == c].T), covariance[c], atol=0.15)


def test_moments_of_classes_with_many_one_and_no_images():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((8, 3))
    labels = np.array([0] * 7 + [1])
    mean, covariance, counts = class_moments(features, labels, 3)
    np.testing.assert_array_equal(counts, [7, 1, 0])
    np.testing.assert_allclose(covariance[0], np.cov(features[:7].T), rtol=1e-12)
    np.testing.assert_allclose(mean[1], features[7])
    np.testing.assert_array_equal(covariance[1:], 0)  # np.cov would say NaN
    expected = [np.trace(np.cov(features[:7].T)) / 3, 0, 0]
    np.testing.assert_allclose(class_variances(features, labels, 3), expected)
    np.testing.assert_allclose(sampling_factor(covariance[1]), np.sqrt(1e-5) * np.eye(3))


def test_empirical_feature_matrix_is_the_expected_square_of_log_likelihood_gradients():
    rng = np.random.default_rng(1)
    z, w = rng.standard_normal((7, 4)), rng.standard_normal((3, 4))
    expected = np.zeros((4, 4))
    for row in z:
        p = np.exp(tiny.log_softmax(w @ row))
        for c in range(3):
            gradient = w[c] - p @ w  # of log p_c in the feature
            expected += p[c] * np.outer(gradient, gradient)
    np.testing.assert_allclose(efc.empirical_feature_matrix(z, w), expected / len(z), rtol=1e-10)


def test_elastic_drift_scales_over_all_pairs_before_weighting():
    rng = np.random.default_rng(2)
    old, new = rng.standard_normal((2, 9, 4))
    prototypes = rng.standard_normal((3, 4))
    root = rng.standard_normal((2, 4))
    e, sigma = root.T @ root, 0.2  # singular
    s = np.array([[-(z - p) @ e @ (z - p) for z in old] for p in prototypes])
    w = np.exp((s - s.min()) / (s.max() - s.min()) / (2 * sigma**2))
    expected = np.array([sum(wi * d for wi, d in zip(row, new - old, strict=True)) / row.sum() for row in w])
    pairs = Pairs(old, new, np.zeros(9, int))
    np.testing.assert_allclose(efc.elastic_drift(pairs, prototypes, e, sigma), expected, rtol=1e-8)


def test_elastic_drift_without_a_spread_is_the_mean_drift():
    old, new = np.random.default_rng(3).standard_normal((2, 5, 4))
    pairs = Pairs(old, new, np.zeros(5, int))
    got = efc.elastic_drift(pairs, np.ones((2, 4)), np.zeros((4, 4)), 0.2)
    np.testing.assert_allclose(got, np.tile((new - old).mean(0), (2, 1)))
    one = efc.elastic_drift(Pairs(old[:1], new[:1], np.zeros(1, int)), np.ones((1, 4)), np.eye(4), 0.2)
    np.testing.assert_allclose(one, new[:1] - old[:1])


def test_finish_moves_old_gaussians_and_keeps_plain_means_for_other_rows():
    made, prev = objective(), snapshot(1)
    images = np.random.default_rng(9).standard_normal((6, *tiny.SHAPE)).astype(np.float32)
    labels, twice = np.array([2, 2, 2, 3, 3, 3]), lambda images: 2 * images
    view = FakeStage(1, images=images, labels=labels, augment=twice, encode=tiny.features, batch_size=6)
    prev = prev._replace(memory=prev.memory._replace(mean=prev.memory.mean + 0.3))  # of plain images
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), prev, task(1))
    trainable["encoder"] = tiny.variables(2)["params"]
    left = made.finish(trainable, kept, prev, view, task(1))
    variables = {"params": trainable["encoder"], "batch_stats": kept["norm"]}
    old, new = tiny.features(prev.variables, 2 * view.images), tiny.features(variables, 2 * view.images)
    p = numpy(prev.extra["mean"])[:2]
    moved = p + efc.elastic_drift(Pairs(old, new, view.labels), p, numpy(prev.extra["efm"]), 0.2)
    np.testing.assert_allclose(left.extra["mean"][:2], moved, atol=1e-5)
    np.testing.assert_allclose(left.extra["mean"][2], new[:3].mean(0), atol=1e-5)
    np.testing.assert_array_equal(left.extra["factor"][:2], prev.extra["factor"][:2])
    covariance = numpy(left.extra["factor"][3]) @ numpy(left.extra["factor"][3]).T
    np.testing.assert_allclose(covariance, np.cov(new[3:].T) + 1e-5 * np.eye(tiny.DIM), atol=1e-6)
    plain = tiny.features(variables, view.images)
    np.testing.assert_allclose(left.memory.mean[2], plain[:3].mean(0), atol=1e-5)
    np.testing.assert_allclose(left.memory.mean[:2] - prev.memory.mean[:2], moved - p, atol=1e-5)
    np.testing.assert_array_equal(left.memory.origin, [0, 0, 1, 1, -1, -1])
    weight = numpy(trainable["head"]["weight"])[:4]
    np.testing.assert_allclose(left.extra["efm"], efc.empirical_feature_matrix(new, weight), atol=1e-5)
