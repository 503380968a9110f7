"""SSRE against float64 oracles: folding, adapters, the weighted loss and its gradient; where gradients go."""

import jax
import jax.numpy as jnp
import numpy as np
import plain_network
import pytest
from support import FakeStage, make_parts, tiny_features
from tiny_encoder import log_softmax, mean_ce, unit

from rose_jax import models
from rose_jax.config import Config
from rose_jax.errors import UserError
from rose_jax.models.fold import fold, fuse, zero_adapters
from rose_jax.models.resnet import resnet18
from rose_jax.models.tiny import tiny
from rose_jax.train.objectives import make_objective, ssre
from rose_jax.types import Batch, ClassMemory, Snapshot, Task

CLASSES, BATCH, SHAPE = 6, 5, (8, 8, 3)
ENCODERS = {"resnet18": (resnet18(2), plain_network.resnet18), "tiny": (tiny(2), plain_network.tiny)}
DIM = 16


def draw(tree, seed, scale=0.5):
    """Values of a trained network: no two channels alike, variances above zero, some scales of zero or below."""
    rng = np.random.default_rng(seed)

    def value(path, leaf):
        name = path[-1].key
        if name == "kernel":
            return leaf
        if name == "var":
            return rng.uniform(0.3, 2, leaf.shape)
        if name == "scale":
            drawn = rng.uniform(0.5, 1.5, leaf.shape) * rng.choice([-1, 1, 1], leaf.shape)
            drawn[0] = 0
            return drawn
        return scale * rng.standard_normal(leaf.shape)

    drawn = jax.tree_util.tree_map_with_path(value, tree)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), drawn)


def trained(name, seed=0):
    encoder = ENCODERS[name][0]
    return draw(jax.jit(encoder.init)(jax.random.key(seed), jnp.zeros(SHAPE)), seed)


def random_like(tree, seed, scale=0.2):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(scale * rng.standard_normal(x.shape), jnp.float32), tree)


def some_images(n=BATCH, seed=5):
    return np.random.default_rng(seed).standard_normal((n, *SHAPE)).astype(np.float32)


def features_of(name, variables, images, **options):
    return np.asarray(
        jax.jit(lambda v, x: ENCODERS[name][0].apply(v, x, **options)[0]["feature"])(variables, images)
    )


def numpy(x):
    return np.asarray(x, np.float64)


# The network.


@pytest.mark.parametrize("name", ENCODERS)
def test_the_folded_network_is_the_network(name):
    variables, images = trained(name), some_images()
    expected = ENCODERS[name][1](plain_network.folded(variables), images)
    scale = np.abs(expected).max()
    assert scale > 0.1
    after = fold(variables)
    np.testing.assert_allclose(features_of(name, variables, images), expected, atol=2e-5 * scale)
    np.testing.assert_allclose(features_of(name, after, images), expected, atol=2e-5 * scale)
    assert jax.tree.structure(after) == jax.tree.structure(variables), "everyone else sees an ordinary encoder"
    again = fold(after)
    for once, twice in zip(jax.tree.leaves(after), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(once, twice, atol=1e-6)


@pytest.mark.parametrize("name", ENCODERS)
def test_batch_statistics_see_the_network_that_was_folded(name):
    """Up to the epsilon, which is added to the variance of what folding has scaled."""
    variables, images = trained(name), some_images(16)
    before, after = (features_of(name, v, images, norm="batch") for v in (variables, fold(variables)))
    np.testing.assert_allclose(after, before, atol=5e-3 * np.abs(before).max())


@pytest.mark.parametrize("name", ENCODERS)
def test_a_fused_adapter_is_a_convolution_beside(name):
    variables, images = fold(trained(name)), some_images()
    adapters = random_like(zero_adapters(variables["params"]), 1)
    layers = plain_network.with_adapters(plain_network.folded(variables), adapters)
    expected = ENCODERS[name][1](layers, images)
    fused = variables | {"params": fuse(variables["params"], adapters)}
    np.testing.assert_allclose(features_of(name, fused, images), expected, atol=2e-5 * np.abs(expected).max())
    without = features_of(name, variables, images)
    assert np.abs(without - expected).max() > 0.01 * np.abs(expected).max()


def paths(tree):
    return {"/".join(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def test_adapters_are_beside_the_3x3_convolutions_of_blocks():
    found = zero_adapters(trained("resnet18")["params"])
    assert paths(found) == {f"layer{s}_{b}/conv{c}" for s in (1, 2, 3, 4) for b in (0, 1) for c in (1, 2)}
    assert found["layer2_0"]["conv1"].shape == (1, 1, 2, 4)
    assert paths(zero_adapters(trained("tiny")["params"])) == {"conv1", "conv2"}
    with pytest.raises(UserError, match="resnet18 or tiny"):
        zero_adapters({"layer": {"kernel": jnp.zeros((3, 4))}})


# The loss.


def make_config(**options):
    config = Config()
    config.scenario.tasks = 3
    config.model.encoder, config.model.width = "tiny", 2
    config.ssre.prototype_batch = 7
    for name, value in options.items():
        setattr(config.ssre, name, value)
    return config


def objective(**options):
    config = make_config(**options)
    transform = lambda key, images: images.astype(jnp.float32)  # noqa: E731
    return make_objective("ssre", make_parts(config, models.make_encoder(config.model), CLASSES, SHAPE, transform))


def task(index: int) -> Task:
    return Task(jnp.int32(index), jnp.int32(2 * index), jnp.int32(2), jnp.float32(5e-4))


def snapshot(index: int = 0) -> Snapshot:
    rng = np.random.default_rng(3)
    seen = np.arange(CLASSES) < 2 * (index + 1)
    mean = np.where(seen[:, None], rng.uniform(0, 1, (CLASSES, DIM)), 0)
    head = {"weight": 0.3 * rng.standard_normal((CLASSES, DIM)), "bias": 0.1 * rng.standard_normal(CLASSES)}
    return Snapshot(
        fold(trained("tiny")),
        {name: jnp.asarray(x, jnp.float32) for name, x in head.items()},
        jnp.eye(DIM),
        ClassMemory(
            jnp.asarray(mean, jnp.float32), jnp.asarray(np.where(seen, np.arange(CLASSES) // 2, -1), jnp.int32)
        ),
        {"mean": jnp.asarray(np.where(seen[:, None], mean + 0.3 * rng.uniform(0, 1, mean.shape), 0), jnp.float32)},
    )


def batch() -> Batch:
    labels = jnp.asarray(2 + np.arange(BATCH) % 2, jnp.int32)
    return Batch(jnp.asarray(some_images()), labels, jnp.array([True, True, True, True, False]))


def later(made, moved=True):
    """Trainable and kept of the second task, after some training if `moved`."""
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), snapshot(), task(1))
    if moved:
        trainable["adapters"] = random_like(trainable["adapters"], 4)
    return trainable, kept


KEY = jax.random.key(11)


def oracle(trainable, fixed_likeness=None):
    """The printed loss, given the prototypes that the code draws; and s_i, which may be held fixed."""
    prev, data = snapshot(), batch()
    valid = np.asarray(data.mask)
    images, labels = numpy(data.images)[valid], np.asarray(data.labels)[valid]
    before = plain_network.folded(prev.variables)
    z_old = plain_network.tiny(before, images)
    z = plain_network.tiny(plain_network.with_adapters(before, trainable["adapters"]), images)
    weight, bias = numpy(trainable["head"]["weight"])[:4], numpy(trainable["head"]["bias"])[:4]
    prototypes = numpy(prev.extra["mean"])[:2]
    s = (unit(z) @ unit(prototypes).T).max(1) if fixed_likeness is None else fixed_likeness
    entropies = -log_softmax((z @ weight.T + bias) / 0.1)[np.arange(len(labels)), labels]
    chosen = np.asarray(jax.random.randint(KEY, (7,), 0, 2))
    terms = {
        "ce": np.mean((1 - s) * entropies),
        "distill": np.sum(s * np.linalg.norm(z - z_old, axis=1)),
        "prototype": mean_ce((prototypes[chosen] @ weight.T + bias) / 0.1, chosen),
        "projector": np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2),
    }
    return terms, s


def test_first_task_is_cross_entropy_and_ends_folded():
    made = objective(base="plain")
    trainable, kept = jax.jit(made.begin)(jax.random.key(0), None, task(0))
    data = batch()._replace(labels=jnp.asarray(np.arange(BATCH) % 2, jnp.int32))
    got, (after, terms, pair) = jax.jit(made.loss)(trainable, kept, None, data, task(0), KEY)
    valid = np.asarray(data.mask)
    z = tiny_features(trainable["encoder"], np.asarray(data.images)[valid])
    weight, bias = numpy(trainable["head"]["weight"])[:2], numpy(trainable["head"]["bias"])[:2]
    expected = mean_ce((z @ weight.T + bias) / 0.1, np.asarray(data.labels)[valid])
    assert float(got) == pytest.approx(expected, rel=1e-4)
    assert pair is None
    encode = lambda variables, images: features_of("tiny", variables, images)  # noqa: E731
    view = FakeStage(0, images=np.asarray(data.images), labels=np.asarray(data.labels), encode=encode)
    left = made.finish(trainable, after, None, view, task(0))
    trained_with = {"params": trainable["encoder"], "batch_stats": after}
    np.testing.assert_allclose(encode(left.variables, data.images), encode(trained_with, data.images), atol=1e-5)
    for norm in ("norm0", "norm1", "norm2"):
        var, scale = left.variables["batch_stats"][norm]["var"], left.variables["params"][norm]["scale"]
        np.testing.assert_allclose(scale, np.sqrt(numpy(var) + 1e-5), rtol=1e-6)
    # Prototypes to replay: here of images that augmentation leaves as they are.
    np.testing.assert_allclose(left.extra["mean"], left.memory.mean, rtol=1e-5)


@pytest.mark.parametrize("detach", [False, True])
def test_later_loss_and_its_gradient(detach):
    made = objective(detach_similarity=detach)
    trainable, kept = later(made)
    value = lambda t: made.loss(t, kept, snapshot(), batch(), task(1), KEY)  # noqa: E731
    (total, (_, terms, _)), grads = jax.jit(jax.value_and_grad(value, has_aux=True))(trainable)
    expected, s = oracle(trainable)
    for name, term in expected.items():
        assert float(terms[name]) == pytest.approx(term, rel=2e-4, abs=1e-6), name
    whole = lambda terms: terms["ce"] + terms["distill"] + 10 * terms["prototype"]  # noqa: E731
    assert float(total) == pytest.approx(whole(expected) + expected["projector"], rel=2e-4)

    # Along a direction in all that is trained but the projector: with the likeness held fixed, or not.
    along = {name: random_like(trainable[name], 8, 1.0) for name in ("adapters", "head")}
    step = 1e-6

    def shifted(by):
        moved = {n: jax.tree.map(lambda x, d: numpy(x) + by * numpy(d), trainable[n], along[n]) for n in along}
        return whole(oracle(trainable | moved, s if detach else None)[0])

    slope = (shifted(step) - shifted(-step)) / (2 * step)
    got = sum(np.vdot(numpy(g), numpy(d)) for n in along for g, d in pairs_of(grads[n], along[n]))
    assert got == pytest.approx(slope, rel=2e-3)
    if detach:
        other = objective(detach_similarity=False)
        attached = jax.jit(jax.grad(lambda t: other.loss(t, kept, snapshot(), batch(), task(1), KEY)[0]))(
            trainable
        )
        assert any(not np.allclose(a, b) for a, b in pairs_of(attached["adapters"], grads["adapters"]))


def pairs_of(one, other):
    return list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_nothing_is_nan_at_the_first_step():
    """Adapters are zero, so that old and new features are the same and their distance has no direction."""
    made = objective()
    trainable, kept = later(made, moved=False)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(trainable["adapters"]))
    value = lambda t: made.loss(t, kept, snapshot(), batch(), task(1), KEY)  # noqa: E731
    (total, (_, terms, _)), grads = jax.jit(jax.value_and_grad(value, has_aux=True))(trainable)
    assert float(terms["distill"]) == 0
    assert np.isfinite(float(total))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads["adapters"]))


def test_only_adapters_and_the_head_are_trained():
    made, prev = objective(), snapshot()
    trainable, kept = later(made, moved=False)
    assert set(trainable) == {"adapters", "head", "projector"}
    np.testing.assert_array_equal(trainable["head"]["weight"][:2], prev.head["weight"][:2])
    np.testing.assert_array_equal(trainable["head"]["bias"][:2], prev.head["bias"][:2])
    assert not np.allclose(trainable["head"]["weight"][2:4], prev.head["weight"][2:4])

    @jax.jit
    def first_step(trainable):
        transform = made.optimizer(jnp.float32(1e-2), task(1), trainable)
        grads = jax.grad(lambda t: made.loss(t, kept, prev, batch(), task(1), KEY)[0])(trainable)
        updates, _ = transform.update(grads, transform.init(trainable), trainable)
        return jax.tree.map(jnp.add, trainable, updates)

    after = first_step(trainable)
    encode = lambda variables, images: features_of("tiny", variables, images)  # noqa: E731
    labels = np.array([2, 2, 3, 3, 3])
    left = made.finish(
        after, kept, prev, FakeStage(1, images=some_images(), labels=labels, encode=encode), task(1)
    )
    before = prev.variables["params"]
    for name in ("conv1", "conv2"):
        change = numpy(left.variables["params"][name]["kernel"]) - numpy(before[name]["kernel"])
        np.testing.assert_allclose(change[1, 1], after["adapters"][name][0, 0], atol=1e-6)
        assert np.any(change[1, 1])
        change[1, 1] = 0
        np.testing.assert_array_equal(change, 0)
    for name in ("conv0", "norm0", "norm1", "norm2"):
        for a, b in pairs_of(left.variables["params"][name], before[name]):
            np.testing.assert_array_equal(a, b)
    for a, b in pairs_of(left.variables["batch_stats"], prev.variables["batch_stats"]):
        np.testing.assert_array_equal(a, b)
    # Old prototypes stay, new ones are means under the fused network.
    np.testing.assert_array_equal(left.extra["mean"][:2], prev.extra["mean"][:2])
    new = encode(left.variables, some_images())[:2].mean(0)
    np.testing.assert_allclose(left.extra["mean"][2], new, atol=1e-6)
    np.testing.assert_allclose(left.memory.mean[2], new, atol=1e-6)
    np.testing.assert_array_equal(left.memory.origin, [-1, -1, 1, 1, -1, -1])


@pytest.mark.parametrize("prototypes", ["augmented", "plain"])
def test_images_that_prototypes_are_made_of(prototypes):
    made, prev = objective(prototypes=prototypes), snapshot()
    trainable, kept = later(made)
    encode = lambda variables, images: features_of("tiny", variables, images)  # noqa: E731
    brighter = lambda images: images + 0.5  # noqa: E731
    view = FakeStage(1, images=some_images(), labels=np.array([2, 2, 3, 3, 3]), encode=encode, augment=brighter)
    left = made.finish(trainable, kept, prev, view, task(1))
    shown = some_images() + (0.5 if prototypes == "augmented" else 0)
    np.testing.assert_allclose(left.extra["mean"][3], encode(left.variables, shown)[2:].mean(0), atol=1e-6)
    np.testing.assert_allclose(left.memory.mean[3], encode(left.variables, some_images())[2:].mean(0), atol=1e-6)
    taken = made.adopt(snapshot()._replace(variables=trained("tiny")))
    from_pass = snapshot().extra["mean"] if prototypes == "augmented" else snapshot().memory.mean
    np.testing.assert_array_equal(taken.extra["mean"], from_pass)


def test_the_first_task_of_pass_is_taken_over_folded_and_upright():
    assert objective(base="plain").adopt is None
    four = {"weight": jnp.arange(4.0 * CLASSES * DIM).reshape(-1, DIM), "bias": jnp.arange(4.0 * CLASSES)}
    left = snapshot()._replace(variables=trained("tiny"), head=four)
    left = left._replace(extra=left.extra | {"radius": jnp.ones(())})
    taken = objective(base="pass").adopt(left)
    np.testing.assert_array_equal(taken.head["bias"], 4 * np.arange(CLASSES))
    np.testing.assert_array_equal(taken.head["weight"], four["weight"][::4])
    images = some_images()
    expected = features_of("tiny", left.variables, images)
    np.testing.assert_allclose(features_of("tiny", taken.variables, images), expected, atol=1e-5)
    assert set(taken.extra) == {"mean"}
    assert taken.memory is left.memory


def test_a_distance_that_is_all_rounding_has_no_gradient():
    rng = np.random.default_rng(0)
    old = jnp.asarray(rng.uniform(0.5, 1, (3, 8)), jnp.float32)
    new = old.at[0].add(3e-7).at[1].add(1e-3)
    value = lambda z: ssre.held_back(jnp.ones(3), z, old, jnp.ones(3, bool))  # noqa: E731
    distance, gradient = jax.value_and_grad(value)(new)
    assert float(distance) == pytest.approx(1e-3 * 8**0.5, rel=1e-3)
    np.testing.assert_array_equal(gradient[::2], 0)
    np.testing.assert_allclose(np.linalg.norm(gradient[1]), 1, rtol=1e-3)


def test_likeness_looks_at_old_prototypes_only():
    rng = np.random.default_rng(0)
    z, prototypes = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    got = ssre.likeness(jnp.asarray(z, jnp.float32), jnp.asarray(prototypes, jnp.float32), jnp.int32(2))
    np.testing.assert_allclose(got, (unit(z) @ unit(prototypes[:2]).T).max(1), atol=1e-6)
