"""IL2A: mixtures as classes, semantic augmentation with its gradients, against float64 oracles of the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder as tiny
from scipy.optimize import approx_fprime
from support import FakeStage, make_parts

from configs import imagenet100_cold10, tiny_warm5
from rose_jax.config import Config, validate
from rose_jax.data.augment import views
from rose_jax.errors import UserError
from rose_jax.methods import resolve
from rose_jax.train.objectives import il2a, make_objective
from rose_jax.train.replay import draw_classes
from rose_jax.types import Batch, ClassMemory, Snapshot, Task

SIZES, CLASSES, PAIRS = (3, 2, 3), 8, 3  # three classes have three pairs
ENDS = np.cumsum(SIZES)


def make_config() -> Config:
    config = Config()
    config.scenario.task_sizes = SIZES
    config.il2a.recipe.batch_size = 6
    return config


def objective(config: Config | None = None, encoder=None):
    return make_objective(
        "il2a", make_parts(config or make_config(), encoder or tiny.encoder(), CLASSES, tiny.SHAPE)
    )


def task(index: int) -> Task:
    offset = ENDS[index] - SIZES[index]
    return Task(jnp.int32(index), jnp.int32(offset), jnp.int32(SIZES[index]), jnp.float32(0.1))


def snapshot(n_old: int = 5, seed: int = 1) -> Snapshot:
    """What the first two tasks left. Of classes to come there is rubbish that must leave no trace."""
    rng = np.random.default_rng(seed)
    head = {
        "weight": jnp.asarray(rng.standard_normal((CLASSES, tiny.DIM)), jnp.float32),
        "bias": jnp.linspace(-1, 1, CLASSES),
    }
    mean, factor = rng.standard_normal((CLASSES, tiny.DIM)), rng.standard_normal((CLASSES, tiny.DIM, 3))
    covariance = 0.1 * factor @ factor.transpose(0, 2, 1)  # of rank 3 in five dimensions
    mean[n_old:], covariance[n_old:] = 1e4, 1e4
    extra = {"mean": jnp.asarray(mean, jnp.float32), "covariance": jnp.asarray(covariance, jnp.float32)}
    origin = jnp.array([0, 0, 0, 1, 1, -1, -1, -1], jnp.int32)
    memory = ClassMemory(jnp.full((CLASSES, tiny.DIM), 77.0), origin)
    return Snapshot(tiny.variables(seed), head, jnp.eye(tiny.DIM), memory, extra)


def batch_of(made, index: int, mask=(True, True, True, False, True, True)) -> Batch:
    images = np.random.default_rng(3).integers(0, 256, (6, *tiny.SHAPE))
    labels = jnp.array([0, 1, 2, 0, 0, 2], jnp.int32) % SIZES[index] + task(index).offset
    return made.batch(jax.random.key(0), jnp.asarray(images, jnp.uint8), labels, jnp.asarray(mask), task(index))


def numpy(x):
    return np.asarray(x, np.float64)


def semantic_oracle(weight, bias, mean, covariance, classes, whose, gamma):
    """Logits [n, C], one entry at a time."""
    logits = np.empty((len(classes), len(weight)))
    for i, c in enumerate(classes):
        for j in range(len(weight)):
            d = weight[j] - weight[c]
            logits[i, j] = weight[j] @ mean[c] + bias[j] + gamma / 2 * d @ covariance[whose[i]] @ d
    return logits


def prepended(index: int) -> np.ndarray:
    """The authors' bookkeeping, done as they do it: each task's covariances in front of those there are."""
    kept = np.arange(SIZES[0])
    for t in range(1, index):
        kept = np.concatenate([np.arange(ENDS[t] - SIZES[t], ENDS[t]), kept])
    return kept


def oracle(trainable, stats, prev, batch, config, index, key):
    """The whole loss, over the valid rows alone."""
    options, valid = config.il2a, np.asarray(batch.mask)
    offset, seen = ENDS[index] - SIZES[index], ENDS[index]
    variables = {"params": trainable["encoder"], "batch_stats": stats}
    z = tiny.features(variables, batch.images, "batch", valid)[valid]
    weight, bias = numpy(trainable["head"]["weight"]), numpy(trainable["head"]["bias"])
    outputs = [*range(seen), *range(CLASSES, CLASSES + views.n_pairs(SIZES[index]))]
    labels = [outputs.index(y) for y in np.asarray(batch.labels)[valid]]
    total = tiny.mean_ce((z @ weight.T + bias)[:, outputs] / options.temperature, np.array(labels))
    if prev is not None:
        z_old = tiny.features(prev.variables, np.asarray(batch.images)[valid])
        drawn, counts = draw_classes(key, jnp.int32(offset), options.recipe.batch_size, CLASSES, options.distinct)
        classes = np.asarray(drawn)[np.asarray(counts)]
        whose = prepended(index)[classes] if options.legacy_cov_index else classes
        mean, covariance = numpy(prev.extra["mean"]), numpy(prev.extra["covariance"])
        lent = semantic_oracle(weight[:seen], bias[:seen], mean, covariance, classes, whose, options.gamma)
        total += options.semantic_weight * tiny.mean_ce(lent / options.temperature, classes)
        total += options.distill_weight * np.sqrt(np.sum((z - z_old) ** 2))
        total += np.mean((z_old @ numpy(trainable["projector"]) - z) ** 2)
    return total


def set_up(config: Config, index: int):
    made, prev = objective(config), None if index == 0 else snapshot()
    trainable, stats = jax.jit(made.begin)(jax.random.key(0), prev, task(index))
    trainable["encoder"] = tiny.variables(2)["params"]
    return made, prev, trainable, stats, batch_of(made, index)


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("distinct", [True, False])
def test_loss(index, legacy, distinct):
    config = make_config()
    config.il2a.legacy_cov_index, config.il2a.distinct = legacy, distinct
    made, prev, trainable, stats, data = set_up(config, index)
    assert trainable["head"]["weight"].shape == (CLASSES + PAIRS, tiny.DIM)
    key = jax.random.key(5)
    got, parts = jax.jit(made.loss)(trainable, stats, prev, data, task(index), key)
    assert set(parts.terms) == ({"ce"} if index == 0 else {"ce", "semantic", "distill", "projector"})
    assert float(got) == pytest.approx(oracle(trainable, stats, prev, data, config, index, key), rel=2e-5)


def test_a_batch_is_the_images_and_their_mixtures():
    config = make_config()
    config.il2a.mix_times, config.il2a.mix_range = 2, (0.3, 0.7)
    data = batch_of(objective(config), 2)
    raw = np.random.default_rng(3).integers(0, 256, (6, *tiny.SHAPE)) / 255
    assert data.images.shape == (6 + 2 * 6, *tiny.SHAPE)
    np.testing.assert_allclose(data.images[:6], raw, rtol=1e-6)
    np.testing.assert_array_equal(data.labels[:6], np.array([5, 6, 7, 5, 5, 7]))
    np.testing.assert_array_equal(data.mask[:6], [True, True, True, False, True, True])
    labels = np.array([0, 1, 2, 0, 0, 2])
    assert data.mask[6:].any()
    for row in 6 + np.flatnonzero(data.mask[6:]):
        mixed, own = numpy(data.images[row]).ravel(), row % 6
        fits = []
        for partner in np.flatnonzero(labels != labels[own]):
            a, b = raw[own].ravel(), raw[partner].ravel()
            lam = (mixed - b) @ (a - b) / np.sum((a - b) ** 2)
            low, high = sorted((labels[own], labels[partner]))
            if np.allclose(lam * a + (1 - lam) * b, mixed, atol=1e-5):
                fits.append((0.3 <= lam <= 0.7) and data.labels[row] == CLASSES + high * (high - 1) // 2 + low)
        assert fits == [True]


def test_weights_of_mixtures_stay_in_their_range():
    """Each of 400 images has a class of its own and shows its number."""
    labels = np.arange(400, dtype=np.int32)
    images = labels.astype(np.float32)[:, None, None, None]
    lam = {}
    for within in ((0.4, 0.6), (0.3, 0.7)):
        mixed = views.mix_classes(jax.random.key(1), images, labels, 0, within=within)
        pair, value = np.asarray(mixed.pair, np.int64), np.asarray(mixed.images).ravel()
        high = ((1 + np.sqrt(1 + 8.0 * pair)) // 2).astype(int)
        low = pair - high * (high - 1) // 2
        far = np.asarray(mixed.valid) & (high - low > 50)
        lam[within] = ((value - low) / np.maximum(high - low, 1))[far]
        assert within[0] - 1e-3 <= lam[within].min() <= lam[within].max() <= within[1] + 1e-3
    assert lam[0.3, 0.7].max() > 0.62, "Beta(20, 20) leaves [0.4, 0.6] one time in five"
    np.testing.assert_allclose(lam[0.4, 0.6].std(), 0.05, atol=0.02)


# Semantic augmentation.


def some_prototypes():
    prev, classes = snapshot(), np.array([0, 4, 2, 2])
    head = {"weight": prev.head["weight"], "bias": prev.head["bias"]}
    return head, prev.extra["mean"][classes], prev.extra["covariance"][classes], classes


def test_semantic_logits():
    head, mean, covariance, classes = some_prototypes()
    prev = snapshot()
    got = il2a.semantic_logits(head, mean, covariance, jnp.asarray(classes), 2.5)
    expected = semantic_oracle(
        *map(numpy, (head["weight"], head["bias"], prev.extra["mean"], prev.extra["covariance"])),
        classes,
        classes,
        2.5,
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    plain = numpy(mean) @ numpy(head["weight"]).T + numpy(head["bias"])
    np.testing.assert_allclose(numpy(got)[np.arange(4), classes], plain[np.arange(4), classes], rtol=1e-5)
    assert np.all(numpy(got) - plain > -1e-5), "rivals come nearer, the class itself does not"


def test_semantic_gradients_pass_through_all_weights():
    """Against finite differences of the float64 oracle; w_j and w_c, and b."""
    head, mean, covariance, classes = some_prototypes()
    prev, shape = snapshot(), head["weight"].shape

    def ours(head):
        logits = il2a.semantic_logits(head, mean, covariance, jnp.asarray(classes), 2.5)
        return -jnp.mean(jax.nn.log_softmax(logits / 0.5)[jnp.arange(len(classes)), classes])

    def theirs(flat):
        weight, bias = flat[:-CLASSES].reshape(shape), flat[-CLASSES:]
        means, covariances = numpy(prev.extra["mean"]), numpy(prev.extra["covariance"])
        logits = semantic_oracle(weight, bias, means, covariances, classes, classes, 2.5)
        return tiny.mean_ce(logits / 0.5, classes)

    got = jax.grad(ours)(head)
    flat = np.concatenate([numpy(head["weight"]).ravel(), numpy(head["bias"])])
    expected = approx_fprime(flat, theirs, 1e-7)
    np.testing.assert_allclose(got["weight"], expected[:-CLASSES].reshape(shape), atol=2e-5)
    np.testing.assert_allclose(got["bias"], expected[-CLASSES:], atol=2e-5)
    quadratic = jax.grad(lambda w: ours(head | {"weight": w}) - ours_plain(head | {"weight": w}, mean, classes))
    assert np.abs(quadratic(head["weight"])).max() > 0.01, "the quadratic term has a part in it"


def ours_plain(head, mean, classes):
    logits = mean @ head["weight"].T + head["bias"][None, :]
    return -jnp.mean(jax.nn.log_softmax(logits / 0.5)[jnp.arange(len(classes)), classes])


def test_prototypes_train_the_head_s_rows_of_seen_classes_alone():
    made, prev, trainable, stats, data = set_up(make_config(), 2)
    term = lambda t: made.loss(t, stats, prev, data, task(2), jax.random.key(0))[1].terms["semantic"]  # noqa: E731
    grads = jax.jit(jax.grad(term))(trainable)
    moved = {name for name, tree in grads.items() if any(np.any(leaf != 0) for leaf in jax.tree.leaves(tree))}
    assert moved == {"head"}
    np.testing.assert_array_equal(grads["head"]["weight"][CLASSES:], 0)  # mixtures
    earlier = task(1)  # the last task's classes are not seen yet
    term = lambda t: made.loss(t, stats, prev, data, earlier, jax.random.key(0))[1].terms["semantic"]  # noqa: E731
    np.testing.assert_array_equal(jax.jit(jax.grad(term))(trainable)["head"]["weight"][5:], 0)


def test_the_authors_covariances_belong_to_other_classes():
    index = il2a.legacy_index(SIZES)
    for t in range(1, 3):
        n_old = ENDS[t - 1]
        np.testing.assert_array_equal(index[t, :n_old], prepended(t))
    np.testing.assert_array_equal(index[1], np.arange(CLASSES))  # one task before: nothing to confuse
    np.testing.assert_array_equal(index[2], [3, 4, 0, 1, 2, 5, 6, 7])
    warm = il2a.legacy_index((50, 5, 5, *(5,) * 8))
    assert np.all(warm[3, :60] != np.arange(60)), "60 of 60 wrong after two increments"


@pytest.mark.parametrize("n_old", [2, 5])
def test_distinct_prototypes(n_old):
    chosen, counts = jax.jit(draw_classes, static_argnums=(2, 3, 4))(
        jax.random.key(0), jnp.int32(n_old), 12, CLASSES, True
    )
    assert sorted(np.asarray(chosen)[np.asarray(counts)]) == list(range(n_old))
    chosen, counts = draw_classes(jax.random.key(0), jnp.int32(n_old), 4000, CLASSES, False)
    assert counts.all()
    assert np.bincount(chosen) == pytest.approx(4000 / n_old, rel=0.15)


def test_no_nan_where_features_are_the_teacher_s():
    """The first step of a task: the distance is 0, whose gradient jnp.sqrt would not have."""
    encoder = tiny.encoder()
    same = lambda variables, images, norm="batch", mask=None: encoder.apply(variables, images)  # noqa: E731
    made, prev = objective(encoder=encoder._replace(apply=same)), snapshot()
    trainable, _ = made.begin(jax.random.key(0), prev, task(2))
    stats, data = prev.variables["batch_stats"], batch_of(made, 2)

    def gradient(t):  # not jitted, lest the two networks are rounded differently
        return jax.grad(lambda t: made.loss(t, stats, prev, data, task(2), jax.random.key(0)), has_aux=True)(t)

    grads, parts = gradient(trainable)
    assert float(parts.terms["distill"]) == 0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


def test_padding_and_mixtures_of_a_class_with_itself_leave_no_trace():
    made, prev, trainable, stats, data = set_up(make_config(), 2)
    assert not np.asarray(data.mask)[6:].all()
    rubbish = data._replace(images=jnp.where(data.mask[:, None, None, None], data.images, 1e3))
    short = Batch(*(x[np.asarray(data.mask)] for x in data[:3]))
    results = [
        jax.jit(jax.grad(lambda t, b: made.loss(t, stats, prev, b, task(2), jax.random.key(0))[0]))(trainable, b)
        for b in (data, rubbish, short)
    ]
    for other in results[1:]:
        for a, b in zip(jax.tree.leaves(results[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# The end of a task, and options.


@pytest.mark.parametrize("prototypes", ["augmented", "plain"])
def test_finish(prototypes):
    config = make_config()
    config.il2a.prototypes = prototypes
    made, prev = objective(config), None
    for index in range(2):
        images = np.random.default_rng(9 + index).standard_normal((9, *tiny.SHAPE))
        labels = np.arange(9) % SIZES[index] + int(task(index).offset)
        view = FakeStage(index, images=images, labels=labels, encode=tiny.features, augment=lambda x: -2 * x)
        trainable, stats = made.begin(jax.random.key(index), prev, task(index))
        left = made.finish(trainable, stats, prev, view, task(index))
        variables = {"params": trainable["encoder"], "batch_stats": stats}
        plain = tiny.features(variables, images)
        z = tiny.features(variables, -2 * images) if prototypes == "augmented" else plain
        for c in np.unique(labels):
            np.testing.assert_allclose(left.extra["mean"][c], z[labels == c].mean(0), atol=1e-6)
            np.testing.assert_allclose(left.extra["covariance"][c], np.cov(z[labels == c].T), atol=1e-6)
            np.testing.assert_allclose(left.memory.mean[c], plain[labels == c].mean(0), atol=1e-6)
        assert left.head["weight"].shape == (CLASSES, tiny.DIM)  # those of mixtures are gone
        if prev is not None:
            for name in ("mean", "covariance"):
                np.testing.assert_array_equal(left.extra[name][:3], prev.extra[name][:3])  # old ones never move
            np.testing.assert_array_equal(left.head["weight"][:3], prev.head["weight"][:3])
        np.testing.assert_array_equal(np.flatnonzero(left.memory.origin == index), np.unique(labels))
        prev = left


def test_settings_and_rows():
    warm = tiny_warm5.get_config().il2a
    assert (warm.recipe.batch_size, warm.mix_range, warm.distinct) == (100, (0.3, 0.7), True)
    assert warm.recipe.first.milestones == (45, 90)
    for arg in ("", "thin", "smoke"):
        config = validate(imagenet100_cold10.get_config(arg))
        with pytest.raises(UserError, match=r"no recipe for imagenet100.*config\.il2a\.recipe"):
            make_objective("il2a", make_parts(config, tiny.encoder(), 100, tiny.SHAPE))
    rows = resolve(["il2a", "il2a+rose"])
    assert rows["il2a"] == ("il2a", "none", "none", "head", "paper")
    assert rows["il2a+rose"].test_time == "rose"
    config = make_config()
    config.il2a.mix_range = (0.6, 0.4)
    with pytest.raises(UserError, match=r"il2a\.mix_range"):
        validate(config)
