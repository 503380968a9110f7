"""Rotations and mixtures as classes: RoSE's warm start and FCS, whole losses against float64 oracles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder as tiny
from support import FakeStage, make_parts

from rose_jax.config import Config
from rose_jax.train import expansion as ex
from rose_jax.train import losses, replay
from rose_jax.train.objectives import fcs, make_objective
from rose_jax.types import Batch, ClassMemory, Snapshot, Task

CLASSES, LASTING, PAIRS = 6, 24, 1  # three tasks of two classes: one pair each


def make_config() -> Config:
    config = Config()
    config.scenario.tasks = 3
    config.loss.expand_labels = True
    config.fcs.prototype_batch = 5
    return config


def objective(name: str, config: Config | None = None):
    return make_objective(name, make_parts(config or make_config(), tiny.encoder(), CLASSES, tiny.SHAPE))


def parts(transform=None):
    return make_parts(make_config(), tiny.encoder(), CLASSES, tiny.SHAPE, transform)


def task(index: int) -> Task:
    return Task(jnp.int32(index), jnp.int32(2 * index), jnp.int32(2), jnp.float32(0.1))


def snapshot(seed: int, head: str) -> Snapshot:
    """What task 0 left: classes 0 and 1."""
    rng = np.random.default_rng(seed)
    rows = {"weight": jnp.asarray(rng.standard_normal((LASTING, tiny.DIM)), jnp.float32)}
    rows |= {"scale": jnp.float32(3.0)} if head == "cosine" else {"bias": jnp.linspace(-1, 1, LASTING)}
    mean = jnp.asarray(rng.standard_normal((CLASSES, tiny.DIM)), jnp.float32)
    memory = ClassMemory(mean, jnp.array([0, 0, -1, -1, -1, -1], jnp.int32))
    variance = jnp.array([0.5, 0.7, 9.0, 9.0, 9.0, 9.0])  # those of classes not seen must not count
    return Snapshot(tiny.variables(seed), rows, jnp.eye(tiny.DIM), memory, {"variance": variance})


def expanded_batch(seed: int, offset: int) -> Batch:
    """Two images rotated (one of them padding), three mixtures (one of a class with itself), the second view."""
    rng = np.random.default_rng(seed)
    images, second = (rng.standard_normal((n, *tiny.SHAPE)) for n in (12 + 3, 12))
    upright = np.array([offset, offset + 1, offset])
    labels = np.concatenate([(4 * upright[:, None] + np.arange(4)).ravel(), [LASTING] * 3])
    mask = np.concatenate([np.repeat([True, True, False], 4), [True, True, False]])
    return Batch(
        jnp.asarray(images, jnp.float32),
        jnp.asarray(labels, jnp.int32),
        jnp.asarray(mask),
        jnp.asarray(second, jnp.float32),
    )


def numpy(x):
    return np.asarray(x, np.float64)


def contrast_oracle(z, labels, keys, key_labels, temperature):
    """FCS's loss as its authors state it: the own view once as a positive of its own, and once among the keys."""
    total = 0.0
    similarity = tiny.unit(z) @ tiny.unit(keys).T / temperature
    for i, row in enumerate(similarity):
        negatives = sum(np.exp(s) for s, y in zip(row, key_labels, strict=True) if y != labels[i])
        positives = [row[i]] + [s for s, y in zip(row, key_labels, strict=True) if y == labels[i]]
        total += np.mean([np.log(1 + np.exp(-s) * negatives) for s in positives])
    return total / len(z)


def both_views(trainable, stats, batch):
    """Features of the valid rows and of the valid second views, and the labels of both."""
    variables = {"params": trainable["encoder"], "batch_stats": stats}
    valid, n = np.asarray(batch.mask), len(batch.extra)
    z = tiny.features(variables, batch.images, "batch", valid)[valid]
    keys = tiny.features(variables, batch.extra, "batch", valid[:n])[valid[:n]]
    return z, keys, np.asarray(batch.labels)[valid], valid


def warm_oracle(trainable, stats, prev, batch, config, offset):
    z, keys, labels, valid = both_views(trainable, stats, batch)
    scale = float(trainable["head"]["scale"])
    logits = scale * tiny.unit(z) @ tiny.unit(numpy(trainable["head"]["weight"])).T
    own = [*range(4 * offset, 4 * offset + 8), LASTING]
    total = tiny.mean_ce(logits[:, own], np.array([own.index(y) for y in labels]))
    anchors = len(keys)
    total += config.loss.supcon_weight * contrast_oracle(
        z[:anchors], labels[:anchors], keys, labels[:anchors], config.loss.supcon_temperature
    )
    if prev is not None:
        z_old = tiny.features(prev.variables, np.asarray(batch.images)[valid])
        old = float(prev.head["scale"]) * tiny.unit(z_old) @ tiny.unit(numpy(prev.head["weight"])).T
        target = np.exp(tiny.log_softmax(old[:, : 4 * offset] / 2))
        student = tiny.log_softmax(logits[:, : 4 * offset] / 2)
        total += config.loss.kd_weight * -(target * student).sum(1).mean()
        total += np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2)
    return total


@pytest.mark.parametrize("first", [True, False])
def test_warm_start_loss(first):
    config = make_config()
    made = objective("base", config)
    prev, index = (None, 0) if first else (snapshot(1, "cosine"), 1)
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(index))
    assert trainable["head"]["weight"].shape == (LASTING + PAIRS, tiny.DIM)
    trainable["encoder"] = tiny.variables(2)["params"]
    data = expanded_batch(3, 2 * index)
    got, (after, *_) = jax.jit(made.loss)(trainable, stats, prev, data, task(index), jax.random.key(0))
    expected = warm_oracle(trainable, stats, prev, data, config, 2 * index)
    assert float(got) == pytest.approx(expected, rel=2e-5)
    # Running statistics come from the first view alone.
    hidden = numpy(data.images).reshape(len(data.images), -1) @ numpy(trainable["encoder"]["layer"]["kernel"])
    mean = 0.9 * numpy(stats["mean"]) + 0.1 * hidden[np.asarray(data.mask)].mean(0)
    np.testing.assert_allclose(after["mean"], mean, atol=1e-5)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("expanded", [True, False])
def test_lwf_is_the_same_loss_without_the_contrast(first, expanded):
    config = make_config()
    config.lwf.expand_labels = expanded
    made = objective("lwf", config)
    prev, index = (None, 0) if first else (snapshot(1, "cosine"), 1)
    data, per_class = expanded_batch(3, 2 * index), 4
    if not expanded:
        per_class = 1
        data = Batch(data.images[:12:4], data.labels[:12:4] // 4, data.mask[:12:4])
        if prev is not None:
            prev = prev._replace(head=prev.head | {"weight": prev.head["weight"][:CLASSES]})
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(index))
    trainable["encoder"] = tiny.variables(2)["params"]
    got, (_, terms, _) = jax.jit(made.loss)(trainable, stats, prev, data, task(index), jax.random.key(0))
    assert set(terms) == ({"ce"} if first else {"ce", "kd", "projector"})
    valid = np.asarray(data.mask)
    variables = {"params": trainable["encoder"], "batch_stats": stats}
    z, labels = tiny.features(variables, data.images, "batch", valid)[valid], np.asarray(data.labels)[valid]
    logits = float(trainable["head"]["scale"]) * tiny.unit(z) @ tiny.unit(numpy(trainable["head"]["weight"])).T
    offset = 2 * index * per_class
    own = [*range(offset, offset + 2 * per_class), *([LASTING] if expanded else [])]
    expected = tiny.mean_ce(logits[:, own], np.array([own.index(y) for y in labels]))
    if prev is not None:
        z_old = tiny.features(prev.variables, np.asarray(data.images)[valid])
        old = float(prev.head["scale"]) * tiny.unit(z_old) @ tiny.unit(numpy(prev.head["weight"])).T
        target = np.exp(tiny.log_softmax(old[:, :offset] / 2))
        expected += config.loss.kd_weight * -(target * tiny.log_softmax(logits[:, :offset] / 2)).sum(1).mean()
        expected += np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2)
    assert float(got) == pytest.approx(expected, rel=2e-5)


def test_contrast_within_an_expanded_batch_leaves_mixtures_out():
    config = make_config()
    config.loss.second_view = False
    made, data = objective("base", config), expanded_batch(3, 0)._replace(extra=None)
    images = jnp.zeros((3, *tiny.SHAPE), jnp.uint8)
    labels, mask = jnp.array([0, 1, 0], jnp.int32), jnp.ones(3, bool)
    assert jax.eval_shape(made.batch, jax.random.key(0), images, labels, mask, task(0)).extra is None
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), None, task(0))
    _, (_, terms, _) = jax.jit(made.loss)(trainable, stats, None, data, task(0), jax.random.key(0))
    variables = {"params": trainable["encoder"], "batch_stats": stats}
    valid = np.asarray(data.mask)
    z = tiny.features(variables, data.images, "batch", valid)
    rows = np.flatnonzero(valid & (np.asarray(data.labels) < LASTING))
    expected = losses.supervised_contrastive(
        jnp.asarray(z[rows], jnp.float32),
        data.labels[rows],
        jnp.ones(len(rows), bool),
        config.loss.supcon_temperature,
        config.loss.supcon_denominator,
    )
    assert float(terms["supcon"]) == pytest.approx(float(expected), rel=1e-4)


def test_heads_carry_old_rows_and_drop_those_of_mixtures():
    made, prev = objective("base"), snapshot(1, "cosine")
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(1))
    np.testing.assert_array_equal(trainable["head"]["weight"][:8], prev.head["weight"][:8])
    assert not np.any(np.asarray(trainable["head"]["weight"][8:LASTING] == prev.head["weight"][8:]))
    assert float(trainable["head"]["scale"]) == 3.0
    expansion = ex.make_expansion(parts(), rotate=True, mix=True)
    kept = ex.lasting_head(expansion, trainable["head"])
    assert kept["weight"].shape == (LASTING, tiny.DIM)
    assert kept["scale"].shape == ()


def test_mixture_outputs_have_room_for_the_largest_task():
    config = Config()
    config.scenario.task_sizes = (4, 1, 3, 2)
    expansion = ex.make_expansion(make_parts(config, None, 10, tiny.SHAPE), rotate=True, mix=True)
    assert expansion.pairs == (6, 3)
    later = Task(jnp.int32(2), jnp.int32(5), jnp.int32(3), jnp.float32(0))
    among = ex.outputs_among(expansion, expansion.width(False), later.offset, later.n_new, later)
    np.testing.assert_array_equal(np.flatnonzero(among), [*range(20, 32), 40, 41, 42])
    alone = Task(jnp.int32(1), jnp.int32(4), jnp.int32(1), jnp.float32(0))  # a task of one class has no pair
    among = ex.outputs_among(expansion, expansion.width(False), 0, 5, alone)
    np.testing.assert_array_equal(np.flatnonzero(among), np.arange(20))


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("mix", [True, False])
def test_rotations_and_mixtures_come_apart(rotate, mix):
    """Either alone is the part of both together that is asked for, moved to where its outputs lie."""
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, *tiny.SHAPE)), jnp.uint8)
    labels, mask = jnp.array([2, 3, 2, 3], jnp.int32), jnp.array([True, True, True, False])
    args = (jax.random.key(0), images, labels, mask, task(1))
    both = ex.make_expansion(parts(), rotate=True, mix=True).batch(*args)
    made = ex.make_expansion(parts(), rotate=rotate, mix=mix)
    assert (made.per_class, made.pairs) == (4 if rotate else 1, (PAIRS, PAIRS) if mix else (0, 0))
    assert made.lasting == made.width(False) - made.pairs[1] == (24 if rotate else 6)
    rows = np.r_[np.arange(16) if rotate else np.arange(0, 16, 4), np.arange(16, 32) if mix else []].astype(int)
    got, upright = made.batch(*args), 16 if rotate else 4
    np.testing.assert_array_equal(got.images, both.images[rows])
    np.testing.assert_array_equal(got.mask, both.mask[rows])
    np.testing.assert_array_equal(got.labels[:upright], both.labels[rows[:upright]] // (1 if rotate else 4))
    mixed = np.asarray(got.mask[upright:])
    np.testing.assert_array_equal(
        got.labels[upright:][mixed], both.labels[rows[upright:]][mixed] - LASTING + made.lasting
    )


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 1)])
@pytest.mark.parametrize("name", ["il2a", "fcs", "base"])
def test_tasks_of_one_class_have_no_mixture_and_a_finite_loss(name, sizes):
    """The head then ends with the classes: no label may point beyond it."""
    config = make_config()
    config.scenario.task_sizes, config.loss.expand_labels, config.il2a.recipe.batch_size = sizes, True, 4
    given = make_parts(config, tiny.encoder(), sum(sizes), tiny.SHAPE)
    made = make_objective(name, given._replace(transform=objective_transform, normalise=jnp.float32))
    first = Task(jnp.int32(0), jnp.int32(0), jnp.int32(sizes[0]), jnp.float32(0))
    second = Task(jnp.int32(1), jnp.int32(sizes[0]), jnp.int32(sizes[1]), jnp.float32(0))
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, *tiny.SHAPE)), jnp.uint8)
    prev = None
    for number, task in enumerate((first, second)):
        labels = jnp.asarray(int(task.offset) + np.arange(4) % int(task.n_new), jnp.int32)
        trainable, kept = made.begin(jax.random.key(0), prev, task)
        batch = made.batch(jax.random.key(1), images, labels, jnp.ones(4, bool), task)
        total, (kept, terms, _) = made.loss(trainable, kept, prev, batch, task, jax.random.key(2))
        assert np.isfinite([float(total), *map(float, terms.values())]).all(), terms
        encode = lambda variables, shown: given.encoder.apply(variables, jnp.float32(shown))[0]["feature"]  # noqa: E731
        view = FakeStage(number, images=np.asarray(images, np.float32), labels=np.asarray(labels), encode=encode)
        prev = made.finish(trainable, kept, prev, view, task)


def test_expanded_batch_keeps_its_shape_and_masks_padding():
    expansion = ex.make_expansion(parts(objective_transform), rotate=True, mix=True, second_view=True)
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (4, *tiny.SHAPE)), jnp.uint8)
    labels, mask = jnp.array([2, 3, 2, 3], jnp.int32), jnp.array([True, True, True, False])
    made = jax.jit(expansion.batch)(jax.random.key(0), images, labels, mask, task(1))
    assert made.images.shape == (32, *tiny.SHAPE)
    assert made.extra.shape == (16, *tiny.SHAPE)
    np.testing.assert_array_equal(made.labels[:8], [8, 9, 10, 11, 12, 13, 14, 15])
    np.testing.assert_array_equal(made.mask[:16], np.repeat(mask, 4))
    np.testing.assert_array_equal(made.labels[16:], np.where(made.mask[16:], LASTING, 0))  # the one pair
    upright = np.asarray(images, np.float32) / 255
    np.testing.assert_allclose(made.images[0], upright[0], rtol=1e-6)
    np.testing.assert_allclose(made.images[1], np.rot90(upright[0]), rtol=1e-6)
    for row in np.flatnonzero(made.mask[16:]):
        pairs = [(i, j) for i in range(3) for j in range(3) if labels[i] != labels[j]]
        mixed = np.asarray(made.images[16 + row], np.float64)
        fits = []
        for i, j in pairs:
            a, b = upright[i].ravel().astype(float), upright[j].ravel().astype(float)
            lam = (mixed.ravel() - b) @ (a - b) / np.sum((a - b) ** 2)
            fits.append(0.4 <= lam <= 0.6 and np.allclose(lam * a + (1 - lam) * b, mixed.ravel(), atol=1e-5))
        assert any(fits)


def objective_transform(key, images):
    return images.astype(jnp.float32) / 255


# FCS


@functools.partial(jax.jit, static_argnums=4)
def noisy_prototypes(key, memory, variance, n_old, size):
    return replay.noisy_prototypes(key, memory.mean, fcs.mean_radius(memory, variance), n_old, size)


def fcs_oracle(trainable, stats, prev, batch, config, offset, key):
    options = config.fcs
    z, keys, labels, valid = both_views(trainable, stats, batch)
    weight, bias = numpy(trainable["head"]["weight"]), numpy(trainable["head"]["bias"])

    def logits(rows):
        return (rows @ weight.T + bias) / options.temperature

    seen = [*range(4 * (offset + 2)), LASTING]
    total = tiny.mean_ce(logits(z)[:, seen], np.array([seen.index(y) for y in labels]))
    anchors = len(keys)
    key_labels = labels[:anchors]
    if prev is not None:
        z_old = tiny.features(prev.variables, np.asarray(batch.images)[valid])
        a, b = numpy(trainable["transfer"]["weight"]), numpy(trainable["transfer"]["bias"])
        noisy, chosen = noisy_prototypes(
            key, prev.memory, prev.extra["variance"], jnp.int32(offset), options.prototype_batch
        )
        noisy, chosen = numpy(noisy), np.asarray(chosen)
        total += options.distill_weight * np.sqrt(np.sum((z - z_old) ** 2))
        total += options.transfer_weight * np.mean(np.linalg.norm(z - (z_old @ a + b), axis=1))
        total += options.prototype_weight * tiny.mean_ce(logits(noisy @ a + b)[:, : 4 * (offset + 2)], 4 * chosen)
        total += np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2)
        keys, key_labels = np.concatenate([keys, noisy]), np.concatenate([key_labels, 4 * chosen])
    contrast = contrast_oracle(z[:anchors], labels[:anchors], keys, key_labels, options.contrast_temperature)
    return total + options.contrast_weight * contrast


@pytest.mark.parametrize("first", [True, False])
def test_fcs_loss(first):
    config = make_config()
    made = objective("fcs", config)
    prev, index = (None, 0) if first else (snapshot(1, "linear"), 1)
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(index))
    trainable["encoder"] = tiny.variables(2)["params"]
    if not first:
        np.testing.assert_array_equal(trainable["transfer"]["weight"], np.eye(tiny.DIM))
        trainable["transfer"]["bias"] = jnp.linspace(-1, 1, tiny.DIM)
    data, key = expanded_batch(3, 2 * index), jax.random.key(5)
    got, _ = jax.jit(made.loss)(trainable, stats, prev, data, task(index), key)
    expected = fcs_oracle(trainable, stats, prev, data, config, 2 * index, key)
    assert float(got) == pytest.approx(expected, rel=2e-5)


def test_fcs_prototypes_train_the_head_alone_and_transfer_the_encoder_too():
    made, prev = objective("fcs"), snapshot(1, "linear")
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(1))
    trainable["encoder"] = tiny.variables(2)["params"]
    data = expanded_batch(3, 2)

    @jax.jit
    def gradients(t):
        def term(name):
            return lambda t: made.loss(t, stats, prev, data, task(1), jax.random.key(0))[1][1][name]

        return {name: jax.grad(term(name))(t) for name in ("prototype", "transfer", "projector")}

    def moved(tree):
        return any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(tree))

    grads = gradients(trainable)
    assert {k for k, g in grads["prototype"].items() if moved(g)} == {"head"}
    assert {k for k, g in grads["transfer"].items() if moved(g)} == {"encoder", "transfer"}
    assert {k for k, g in grads["projector"].items() if moved(g)} == {"projector"}


def test_fcs_distances_are_safe_where_nothing_moved():
    z = jnp.ones((3, 2))
    mask = jnp.array([True, True, False])
    for distance in (losses.batch_distance, fcs.mean_distance):
        value, gradient = jax.value_and_grad(distance)(z, z, mask)
        assert float(value) == 0
        np.testing.assert_array_equal(gradient, 0)


def test_noisy_prototypes_have_the_mean_radius_of_known_classes():
    prev = snapshot(1, "linear")
    noisy, chosen = noisy_prototypes(jax.random.key(0), prev.memory, prev.extra["variance"], jnp.int32(2), 40_000)
    assert set(np.unique(chosen)) == {0, 1}
    spread = (numpy(noisy) - numpy(prev.memory.mean)[np.asarray(chosen)]).var()
    assert spread == pytest.approx((0.5 + 0.7) / 2, rel=0.02)


def test_fcs_finish_transfers_old_prototypes():
    made, prev = objective("fcs"), snapshot(1, "linear")
    images = np.random.default_rng(9).standard_normal((4, *tiny.SHAPE))
    view = FakeStage(
        1, images=images, labels=np.array([2, 2, 2, 3]), encode=tiny.features
    )  # class 3 has one image
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(1))
    rng = np.random.default_rng(0)
    trainable["transfer"] = {
        "weight": jnp.asarray(rng.standard_normal((tiny.DIM, tiny.DIM)), jnp.float32),
        "bias": jnp.ones(tiny.DIM),
    }
    left = made.finish(trainable, stats, prev, view, task(1))
    moved = numpy(prev.memory.mean) @ numpy(trainable["transfer"]["weight"]) + 1
    np.testing.assert_allclose(left.memory.mean[:2], moved[:2], rtol=1e-5)
    z = tiny.features({"params": trainable["encoder"], "batch_stats": stats}, view.images)
    np.testing.assert_allclose(left.memory.mean[2], z[:3].mean(0), atol=1e-6)
    expected = [0.5, 0.7, np.trace(np.cov(z[:3].T)) / tiny.DIM, 0, 0, 0]
    np.testing.assert_allclose(left.extra["variance"], expected, atol=1e-6)
    np.testing.assert_array_equal(left.memory.origin, [0, 0, 1, 1, -1, -1])
    assert left.head["weight"].shape == (LASTING, tiny.DIM)
