"""PASS: three terms, the noise's radius and the end of a task against float64 oracles written from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder as tiny
from support import FakeStage, make_parts

from configs import cifar100_cold10, imagenet100_warm10
from rose_jax.config import Config
from rose_jax.methods import resolve
from rose_jax.train import losses, optimizers
from rose_jax.train.objectives import make_objective, pass_
from rose_jax.train.replay import noisy_prototypes, own_transform
from rose_jax.types import Batch, ClassMemory, Snapshot, Task

CLASSES, OUTPUTS = 6, 24  # three tasks of two classes
RADIUS = 0.4


def make_config() -> Config:
    config = Config()
    config.scenario.tasks = 3
    config.pass_.recipe.batch_size = 7
    return config


def objective(config: Config | None = None):
    return make_objective("pass", make_parts(config or make_config(), tiny.encoder(), CLASSES, tiny.SHAPE))


def task(index: int) -> Task:
    return Task(jnp.int32(index), jnp.int32(2 * index), jnp.int32(2), jnp.float32(0.1))


def snapshot(seed: int = 1) -> Snapshot:
    """What task 0 left: classes 0 and 1. Of the others there is rubbish that must leave no trace."""
    rng = np.random.default_rng(seed)
    head = {
        "weight": jnp.asarray(rng.standard_normal((OUTPUTS, tiny.DIM)), jnp.float32),
        "bias": jnp.linspace(-1, 1, OUTPUTS),
    }
    mean = rng.standard_normal((CLASSES, tiny.DIM))
    mean[2:] = 1e4
    extra = {"mean": jnp.asarray(mean, jnp.float32), "radius": jnp.float32(RADIUS)}
    memory = ClassMemory(jnp.full((CLASSES, tiny.DIM), 77.0), jnp.array([0, 0, -1, -1, -1, -1], jnp.int32))
    return Snapshot(tiny.variables(seed), head, jnp.eye(tiny.DIM), memory, extra)


def batch_of(made, index: int, mask=(True, True, True, False, True)) -> Batch:
    images = np.random.default_rng(3).integers(0, 256, (5, *tiny.SHAPE))
    labels = jnp.array([0, 1, 1, 0, 0], jnp.int32) + 2 * index
    return made.batch(jax.random.key(0), jnp.asarray(images, jnp.uint8), labels, jnp.asarray(mask), task(index))


def numpy(x):
    return np.asarray(x, np.float64)


def oracle(trainable, stats, prev, batch, config, offset, key):
    """The whole loss, over the valid rows alone."""
    options, valid = config.pass_, np.asarray(batch.mask)
    variables = {"params": trainable["encoder"], "batch_stats": stats}
    z = tiny.features(variables, batch.images, "batch", valid)[valid]
    weight, bias = numpy(trainable["head"]["weight"]), numpy(trainable["head"]["bias"])
    seen = 4 * (offset + 2)

    def ce(rows, labels):
        return tiny.mean_ce((rows @ weight.T + bias)[:, :seen] / options.temperature, labels)

    total = ce(z, np.asarray(batch.labels)[valid])
    if prev is not None:
        z_old = tiny.features(prev.variables, np.asarray(batch.images)[valid])
        noisy, classes = noisy_prototypes(
            key, prev.extra["mean"], prev.extra["radius"], jnp.int32(offset), options.recipe.batch_size
        )
        assert len(classes) == options.recipe.batch_size
        total += options.prototype_weight * ce(numpy(noisy), 4 * np.asarray(classes))
        total += options.distill_weight * np.sqrt(np.sum((z - z_old) ** 2))
        total += np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2)
    return total


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_loss(first, temperature):
    config = make_config()
    config.pass_.temperature = temperature
    made = objective(config)
    prev, index = (None, 0) if first else (snapshot(), 1)
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(index))
    assert trainable["head"]["weight"].shape == (OUTPUTS, tiny.DIM)
    trainable["encoder"] = tiny.variables(2)["params"]
    data, key = batch_of(made, index), jax.random.key(5)
    got, parts = jax.jit(made.loss)(trainable, stats, prev, data, task(index), key)
    assert set(parts.terms) == ({"ce"} if first else {"ce", "prototype", "distill", "projector"})
    assert float(got) == pytest.approx(oracle(trainable, stats, prev, data, config, 2 * index, key), rel=2e-5)


def test_a_batch_is_each_image_turned_four_times():
    made = objective()
    images = np.random.default_rng(0).integers(0, 256, (3, *tiny.SHAPE))
    mask = jnp.array([True, False, True])
    data = made.batch(
        jax.random.key(0), jnp.asarray(images, jnp.uint8), jnp.array([3, 2, 2], jnp.int32), mask, task(1)
    )
    expected = [np.rot90(image, k) / 255 for image in images for k in range(4)]
    np.testing.assert_allclose(data.images, expected, rtol=1e-6)
    np.testing.assert_array_equal(data.labels, [4 * y + k for y in (3, 2, 2) for k in range(4)])
    np.testing.assert_array_equal(data.mask, np.repeat(mask, 4))
    assert data.extra is None


def test_prototypes_are_old_classes_with_noise_of_radius_r():
    prev = snapshot()
    noisy, classes = noisy_prototypes(
        jax.random.key(0), prev.extra["mean"], prev.extra["radius"], jnp.int32(2), 40_000
    )
    assert np.bincount(classes).tolist() == pytest.approx([20_000, 20_000], abs=500)
    spread = numpy(noisy) - numpy(prev.extra["mean"])[np.asarray(classes)]
    assert spread.std() == pytest.approx(RADIUS, rel=0.02)


def test_no_nan_where_features_are_the_teacher_s():
    """The first step of a task: the distance is 0, whose gradient jnp.sqrt would not have."""
    made, prev = objective(), snapshot()
    encoder = tiny.encoder()
    same = lambda variables, images, norm="batch", mask=None: encoder.apply(variables, images)  # noqa: E731
    frozen = make_objective("pass", make_parts(make_config(), encoder._replace(apply=same), CLASSES, tiny.SHAPE))
    trainable, _ = made.begin(jax.random.key(0), prev, task(1))
    stats = prev.variables["batch_stats"]
    data = batch_of(made, 1)

    def gradient(t):  # not jitted, lest the two networks are rounded differently
        return jax.grad(lambda t: frozen.loss(t, stats, prev, data, task(1), jax.random.key(0)), has_aux=True)(t)

    grads, parts = gradient(trainable)
    assert float(parts.terms["distill"]) == 0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))
    value, alone = jax.value_and_grad(losses.batch_distance)(jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones(3, bool))
    assert float(value) == 0
    np.testing.assert_array_equal(alone, 0)


def test_padding_leaves_no_trace():
    made, prev = objective(), snapshot()
    trainable, stats = made.begin(jax.random.key(0), prev, task(1))
    data = batch_of(made, 1)
    rubbish = data._replace(images=jnp.where(data.mask[:, None, None, None], data.images, 1e3))
    short = Batch(*(x[np.asarray(data.mask)] for x in data[:3]))
    results = [
        jax.jit(jax.grad(lambda t, b: made.loss(t, stats, prev, b, task(1), jax.random.key(0))[0]))(trainable, b)
        for b in (data, rubbish, short)
    ]
    for other in results[1:]:
        for a, b in zip(jax.tree.leaves(results[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_prototypes_train_the_head_alone():
    made, prev = objective(), snapshot()
    trainable, stats = made.begin(jax.random.key(0), prev, task(1))
    data = batch_of(made, 1)
    term = lambda t: made.loss(t, stats, prev, data, task(1), jax.random.key(0))[1].terms["prototype"]  # noqa: E731
    grads = jax.jit(jax.grad(term))(trainable)
    moved = {name for name, tree in grads.items() if any(np.any(leaf != 0) for leaf in jax.tree.leaves(tree))}
    assert moved == {"head"}
    np.testing.assert_array_equal(grads["head"]["weight"][16:], 0)  # outputs of classes not seen yet


# The end of a task.


def stage(index: int, augment=lambda images: images) -> FakeStage:
    images = np.random.default_rng(9 + index).standard_normal((7, *tiny.SHAPE))
    labels = np.array([0, 0, 1, 0, 1, 1, 0]) + 2 * index
    return FakeStage(index, images=images, labels=labels, encode=tiny.features, augment=augment)


def radius_oracle(z, labels, kind):
    if kind == "deviation":
        return np.mean([z[labels == c].std(0).mean() for c in np.unique(labels)])
    return np.sqrt(np.mean([np.trace(np.cov(z[labels == c].T)) / tiny.DIM for c in np.unique(labels)]))


@pytest.mark.parametrize("prototypes", ["augmented", "plain"])
@pytest.mark.parametrize("kind", ["variance", "deviation"])
@pytest.mark.parametrize("when", ["first_task", "running"])
def test_finish(prototypes, kind, when):
    config = make_config()
    config.pass_.prototypes, config.pass_.radius_of, config.pass_.radius = prototypes, kind, when
    made, prev, radii = objective(config), None, []
    for index in range(2):
        view = stage(index, lambda images: -2 * images)
        trainable, stats = made.begin(jax.random.key(index), prev, task(index))
        left = made.finish(trainable, stats, prev, view, task(index))
        variables = {"params": trainable["encoder"], "batch_stats": stats}
        plain = tiny.features(variables, view.images)
        z = tiny.features(variables, -2 * view.images) if prototypes == "augmented" else plain
        radii.append(radius_oracle(z, view.labels, kind))
        for c in (2 * index, 2 * index + 1):
            np.testing.assert_allclose(left.extra["mean"][c], z[view.labels == c].mean(0), atol=1e-6)
            np.testing.assert_allclose(left.memory.mean[c], plain[view.labels == c].mean(0), atol=1e-6)
        if prev is not None:
            np.testing.assert_array_equal(left.extra["mean"][:2], prev.extra["mean"][:2])  # old ones never move
            np.testing.assert_array_equal(left.head["weight"][:8], prev.head["weight"][:8])
        np.testing.assert_array_equal(np.flatnonzero(left.memory.origin == index), [2 * index, 2 * index + 1])
        prev = left
    both = np.mean(radii) if kind == "deviation" else np.sqrt(np.mean(np.square(radii)))
    assert float(prev.extra["radius"]) == pytest.approx(radii[0] if when == "first_task" else both, rel=1e-5)


def test_a_running_radius_weighs_classes():
    assert pass_.running_radius(1.0, 3.0, 6, 2, "variance") == pytest.approx(np.sqrt((6 * 1 + 2 * 9) / 8))
    assert pass_.running_radius(1.0, 3.0, 6, 2, "deviation") == pytest.approx((6 * 1 + 2 * 3) / 8)


# Options.


def test_the_first_task_of_imagenet_is_sgd_s_and_later_ones_adam_s():
    """Two steps of each, against torch's rules written out."""
    params, grads, lr, momentum = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.3, -0.1])}, 0.1, 0.9
    for index in range(2):
        made = optimizers.first_and_later("sgd", "adam", lr, task(index), momentum)
        state, w, m, v, buffer = made.init(params), numpy(params["w"]), 0.0, 0.0, 0.0
        now = params
        for step in (1, 2):
            g = numpy(grads["w"]) + 0.1 * w  # L2, in the gradient
            m, v, buffer = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2, momentum * buffer + g
            adam = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            w = w - lr * (buffer if index == 0 else adam)
            updates, state = made.update(grads, state, now)
            now = jax.tree.map(jnp.add, now, updates)
        np.testing.assert_allclose(now["w"], w, rtol=1e-5)


def test_settings_and_rows():
    imagenet = imagenet100_warm10.get_config().pass_
    assert (imagenet.first_optimizer, imagenet.temperature, imagenet.radius_of) == ("sgd", 1.0, "deviation")
    cold = cifar100_cold10.get_config()
    assert (cold.data.augment, cold.pass_.augment) == ("autoaugment", "standard")
    parts = make_parts(cold, tiny.encoder(), 100, tiny.SHAPE)
    assert own_transform(parts, "", 4) is parts
    assert own_transform(parts, "standard", 4).transform is not parts.transform
    assert objective().train.first.milestones == (44, 89)
    rows = resolve(["pass", "pass+rose", "pass_whitened"])
    assert rows["pass"] == ("pass", "none", "none", "head", "paper")
    assert (rows["pass+rose"].test_time, rows["pass_whitened"].classifier) == ("rose", "whitened")
