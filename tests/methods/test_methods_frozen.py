"""FeTrIL and FeCAM on a frozen encoder: float64 NumPy oracles written from the formulas, on made-up features."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder as tiny
import tiny_run
from sklearn.svm import LinearSVC
from support import FakeStage, make_parts, snapshot_arrays, unpainted

from rose_jax import evolve_features, experiment
from rose_jax.classifiers import CLASSIFIERS, fc
from rose_jax.config import Config, Schedule, validate
from rose_jax.errors import UserError
from rose_jax.methods import METHODS, Row
from rose_jax.run.scoring import Scorer
from rose_jax.statistics import shrinkage
from rose_jax.statistics.translation import features_of_all_classes, nearest_new
from rose_jax.train.objectives import make_objective
from rose_jax.train.schedule import decayed
from rose_jax.types import Batch, ClassMemory, Snapshot, Task

C, D, PER_CLASS = 8, 6, 7  # one image more than dimensions, so that only shrinkage makes covariances well-behaved
RNG = np.random.default_rng(5)
CENTRES = RNG.uniform(0.2, 3.0, (C, D))
LABELS = np.repeat(np.arange(C), PER_CLASS)
FEATURES = np.maximum(CENTRES[LABELS] + 0.6 * RNG.standard_normal((len(LABELS), D)), 0).astype(np.float32)
FEATURES[:, 2] = 0  # a dead channel
TEST = np.maximum(CENTRES[RNG.integers(0, C, 150)] + 0.8 * RNG.standard_normal((150, D)), 0).astype(np.float32)
TEST[:, 2] = 0
HEAD = RNG.standard_normal((C, D)).astype(np.float32)
MEANS = np.stack([FEATURES[c == LABELS].astype(float).mean(0) for c in range(C)])


def snapshot(sizes, k, head=None):
    first = sum(sizes[:k])
    own = (np.arange(C) >= first) & (np.arange(C) < first + sizes[k])
    memory = ClassMemory(
        np.where(own[:, None], MEANS, 0).astype(np.float32), np.where(own, k, -1).astype(np.int32)
    )
    return Snapshot(None, head or {"weight": HEAD}, np.eye(D, dtype=np.float32), memory, {})


def stage_of(sizes, stage, features=FEATURES, head=None, augment=lambda images: images):
    """Stage t of a frozen encoder that is the identity: images are features."""
    snapshots = [snapshot(sizes, k, head) for k in range(stage + 1)]
    rows = snapshots[stage].memory.origin[LABELS] == stage
    return FakeStage(
        stage,
        snapshots=snapshots,
        images=features[rows],
        labels=LABELS[rows],
        augment=augment,
        encode=lambda variables, images: np.asarray(images),
        train=dict.fromkeys(range(stage + 1), features[rows]),
        test=dict.fromkeys(range(stage + 1), TEST),
    )


def follow(row, sizes, layout, config=None, **stage):
    """Outcomes of all stages."""
    config = config or Config()
    config.scenario.task_sizes, config.test.batch_size, config.evolution.capacity = sizes, 32, 40
    row = row if isinstance(row, Row) else METHODS[row]
    scorer = Scorer("row", row, make_parts(config, None, C, (1, 1, 3)), layout, None)
    return [scorer.score(stage_of(sizes, k, **stage)) for k in range(len(sizes))]


# FeCAM.


def covariance(rows):
    return np.cov(rows.astype(float).T)


def shrink(matrix, alpha1=1.0, alpha2=1.0, nonzero=True):
    """Entry by entry: Sigma + alpha1 V1 I + alpha2 V2 (1 - I)."""
    d = len(matrix)
    off = [matrix[i, j] for i in range(d) for j in range(d) if i != j and (matrix[i, j] != 0 or not nonzero)]
    v1, v2 = np.trace(matrix) / d, sum(off) / len(off)
    return np.array(
        [[matrix[i, j] + (alpha1 * v1 if i == j else alpha2 * v2) for j in range(d)] for i in range(d)]
    )


def correlate(matrix):
    deviation = np.sqrt(np.diag(matrix))
    return matrix / deviation[:, None] / deviation[None, :]


def mahalanobis(matrices, seen, beta=0.5):
    """Labels of TEST: the least (x~ - mu~)^T pinv(Sigma_c) (x~ - mu~)."""
    x, mu = tiny.unit(TEST.astype(float) ** beta), tiny.unit(MEANS.astype(np.float32).astype(float) ** beta)
    distances = [
        np.einsum("ni,ij,nj->n", x - mu[c], np.linalg.pinv(matrices[c], hermitian=True), x - mu[c])
        for c in range(seen)
    ]
    return np.argmin(distances, 0)


def test_shrinkage_and_correlation():
    matrix = covariance(FEATURES[:9] ** 0.5)
    for nonzero in (True, False):
        expected = shrink(matrix, 0.7, 1.3, nonzero)
        got = shrinkage.shrunk(matrix, 0.7, 1.3, "nonzero" if nonzero else "all")
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(shrinkage.correlation(expected), correlate(expected), rtol=1e-12)
    assert not shrinkage.correlation(matrix)[2].any(), "a channel without variance correlates with nothing"
    np.testing.assert_array_equal(shrinkage.shrunk(np.diag([1.0, 3.0]), 1, 1), np.diag([3.0, 5.0]))


@pytest.mark.parametrize("matrix", [np.diag([4.0, 0.0, 1.0]), np.array([[1.0, 2.0], [2.0, 1.0]])])
def test_a_pseudo_inverse_by_its_factor(matrix):
    """A singular one, and one with a negative eigenvalue, which shrinkage by negative covariances can make."""
    factor, sign = shrinkage.inverse_factor(matrix)
    np.testing.assert_allclose(factor * sign @ factor.T, np.linalg.pinv(matrix), atol=1e-12)


SWITCHES = {
    "code": ({}, lambda rows: correlate(shrink(shrink(covariance(rows**0.5))))),
    "shrunk_once": ({"shrink_times": 1}, lambda rows: correlate(shrink(covariance(rows**0.5)))),
    "no_correlation": ({"correlation": False}, lambda rows: shrink(shrink(covariance(rows**0.5)))),
    "all_entries": (
        {"mean_covariance": "all", "alpha1": 0.5, "alpha2": 2.0},
        lambda rows: correlate(shrink(shrink(covariance(rows**0.5), 0.5, 2, False), 0.5, 2, False)),
    ),
    "no_tukey": ({"beta": 1.0}, lambda rows: correlate(shrink(shrink(covariance(rows))))),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_fecam_of_each_class(name, one_device):
    changes, matrix = SWITCHES[name]
    config, sizes = Config(), (4, 3, 1)
    for key, value in changes.items():
        setattr(config.fecam, key, value)
    outcomes = follow("fecam", sizes, one_device, config)
    cosines = tiny.unit(TEST.astype(float)) @ tiny.unit(HEAD.astype(float)).T
    np.testing.assert_array_equal(outcomes[0].predictions, cosines[:, :4].argmax(1), "the code's first stage")
    matrices = [matrix(FEATURES[c == LABELS].astype(float)) for c in range(C)]
    for stage, seen in ((1, 7), (2, 8)):
        np.testing.assert_array_equal(
            outcomes[stage].predictions, mahalanobis(matrices, seen, changes.get("beta", 0.5))
        )


def test_fecam_s_first_stage_by_its_covariances(one_device):
    config = Config()
    config.fecam.first_stage = "mahalanobis"
    matrices = [SWITCHES["code"][1](FEATURES[c == LABELS].astype(float)) for c in range(C)]
    predictions = follow("fecam", (4, 4), one_device, config)[0].predictions
    np.testing.assert_array_equal(predictions, mahalanobis(matrices, 4))


def test_fecam_1_s_first_stage_by_its_covariance(one_device):
    config = Config()
    config.fecam.first_stage = "mahalanobis"
    predictions = follow("fecam_1", (4, 4), one_device, config)[0].predictions
    np.testing.assert_array_equal(predictions, mahalanobis([covariance(FEATURES[LABELS < 4] ** 0.5)] * 4, 4))


@pytest.mark.parametrize("scatter", ["total", "within"])
@pytest.mark.parametrize("shrink_first", [False, True])
def test_fecam_of_one_covariance(scatter, shrink_first, one_device):
    config, sizes = Config(), (4, 3, 1)
    config.fecam.scatter, config.fecam.shrink_first = scatter, shrink_first

    def brighter(images):  # what augmentation does here
        return 1.5 * np.asarray(images)

    def of_task(first, last):
        rows = (first <= LABELS) & (last > LABELS)
        if scatter == "total":
            return covariance((1.5 * FEATURES[rows]) ** 0.5)
        return np.mean([covariance((1.5 * FEATURES[c == LABELS]) ** 0.5) for c in range(first, last)], 0)

    outcomes = follow("fecam_1", sizes, one_device, config, augment=brighter)
    common = shrink(of_task(0, 4)) if shrink_first else of_task(0, 4)
    for stage, (old, seen) in enumerate(((4, 7), (7, 8)), 1):
        common = old / seen * common + (seen - old) / seen * shrink(of_task(old, seen))
        np.testing.assert_allclose(outcomes[stage].params["covariance"], common, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(outcomes[stage].predictions, mahalanobis([common] * C, seen))


def test_the_common_covariance_of_plain_images(one_device):
    config = Config()
    config.fecam.common_images = "plain"
    found = follow("fecam_1", (4, 4), one_device, config, augment=lambda images: 1 / 0)[0].params["covariance"]
    np.testing.assert_allclose(found, covariance(FEATURES[LABELS < 4] ** 0.5), rtol=1e-5, atol=1e-7)


def test_fecam_does_not_depend_on_the_number_of_tasks(one_device):
    """The reason why the paper prints one figure for 5 and 10 tasks."""
    last = [follow("fecam", sizes, one_device)[-1] for sizes in ((4, 4), (4, 2, 2), (4, 1, 1, 1, 1))]
    for other in last[1:]:
        np.testing.assert_array_equal(other.predictions, last[0].predictions)
    assert len(np.unique(last[0].predictions)) > 4


# FeTrIL.


def pseudo_features(old, new, kind):
    """New classes' features, and f + mu_p - mu_n: in the order of the classes."""
    rows, labels = [], []
    means = MEANS.astype(np.float32).astype(float)
    for p in (*new, *old):
        if p in new:
            n = p
        elif kind == "euclidean":
            n = min(new, key=lambda c: np.linalg.norm(means[c] - means[p]))
        else:
            n = max(new, key=lambda c: tiny.unit(means[c]) @ tiny.unit(means[p]))
        rows.append(FEATURES[n == LABELS] + means[p] - means[n])
        labels += [p] * PER_CLASS
    return np.concatenate(rows), np.array(labels)


@pytest.mark.parametrize("kind", ["euclidean", "cosine"])
def test_pseudo_features(kind):
    view = stage_of((5, 3), 1)
    memory = ClassMemory(MEANS.astype(np.float32), np.array([0] * 5 + [1] * 3))
    features, labels = features_of_all_classes(memory, view, kind)
    expected, expected_labels = pseudo_features(range(5), range(5, 8), kind)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(features, expected, atol=1e-6)


def test_nearest_by_distance_and_by_angle_differ():
    old, new = np.array([[1.0, 1.0]]), np.array([[9.0, 9.0], [1.0, 2.0]])
    assert nearest_new(old, new, "euclidean") == [1]
    assert nearest_new(old, new, "cosine") == [0]


@pytest.mark.parametrize(("kind", "c", "tol"), [("euclidean", 1.0, 1e-4), ("cosine", 0.05, 1e-6)])
def test_support_vector_machines(kind, c, tol, one_device):
    """One against the rest, class by class, is what scikit-learn does with all labels at once."""
    config = Config()
    config.fetril.nearest, config.fetril.svm_c, config.fetril.svm_tol = kind, c, tol
    outcome = follow("fetril", (5, 3), one_device, config)[1]
    features, labels = pseudo_features(range(5), range(5, 8), kind)
    machine = LinearSVC(C=c, tol=tol, dual=False, random_state=42).fit(tiny.unit(features), labels)
    np.testing.assert_allclose(outcome.params["weight"], machine.coef_, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(outcome.predictions, machine.predict(tiny.unit(TEST.astype(float))))


def test_machines_for_two_classes_and_for_one(one_device):
    """scikit-learn has one machine for two classes and refuses one class; here each class seen has its own score."""
    two = follow("fetril", (2, 6), one_device)[0]
    rows = LABELS < 2
    machine = LinearSVC(C=1.0, tol=1e-4, dual=False).fit(tiny.unit(FEATURES[rows].astype(float)), LABELS[rows])
    np.testing.assert_array_equal(two.predictions, machine.predict(tiny.unit(TEST.astype(float))))
    assert not follow("fetril", (1, 7), one_device)[0].predictions.any()


@pytest.mark.parametrize("nearest", ["cosine", "euclidean"])
def test_softmax_layer(nearest, one_device, monkeypatch):
    """Two stages of SGD on features as they are: old rows go on where they were, momentum starts anew."""
    monkeypatch.setattr(fc, "STEPS_PER_CALL", 2)
    config, sizes = Config(), (5, 3)
    config.fetril.fc_nearest = nearest
    config.fetril.fc, config.fetril.fc_batch_size = Schedule(3, 0.05, (), 1e-2, "cosine"), 12
    outcomes = follow("fetril_fc", sizes, one_device, config)
    previous = None
    for stage, (old, new) in enumerate(((range(0), range(5)), (range(5), range(5, 8)))):
        features, labels = pseudo_features(old, new, nearest)
        origin = np.where(np.arange(C) < 5, 0, 1) if stage else np.where(np.arange(C) < 5, 0, -1)
        memory = ClassMemory(MEANS, origin)
        head = fc.grown(previous, memory, stage, fc.generator("stream", 0, stage, fc._INIT))
        weight, bias = (head[name].astype(float) for name in ("weight", "bias"))
        if previous is not None:
            np.testing.assert_array_equal(weight[:5], previous["weight"][:5])
            np.testing.assert_array_equal(bias[5:], 0)
        speed, order, seen = [0.0, 0.0], fc.generator("stream", 0, stage, fc._ORDER), new[-1] + 1
        for epoch in range(3):
            lr = 0.05 * (1 + np.cos(np.pi * epoch / 3)) / 2
            permutation = order.permutation(len(features))
            for start in range(0, len(features), 12):
                x, y = (values[permutation[start : start + 12]] for values in (features, labels))
                error = np.zeros((len(x), C))
                error[:, :seen] = np.exp(tiny.log_softmax(x @ weight[:seen].T + bias[:seen]))
                error[np.arange(len(x)), y] -= 1
                gradients = error.T @ x / len(x) + 1e-2 * weight, error.mean(0) + 1e-2 * bias
                speed = [0.9 * v + g for v, g in zip(speed, gradients, strict=True)]
                weight, bias = weight - lr * speed[0], bias - lr * speed[1]
        previous = outcomes[stage].params
        np.testing.assert_allclose(previous["weight"], weight, atol=1e-4)
        np.testing.assert_allclose(previous["bias"], bias, atol=1e-4)
        expected = (TEST @ weight[:seen].T + bias[:seen]).argmax(1)
        assert np.mean(outcomes[stage].predictions == expected) > 0.98


def test_a_trained_linear_head_is_the_first_softmax_layer(one_device):
    head = {"weight": HEAD, "bias": np.arange(C, dtype=np.float32)}
    first = follow("fetril_fc", (5, 3), one_device, head=head)[0]
    np.testing.assert_array_equal(first.params["weight"], HEAD)
    np.testing.assert_array_equal(first.predictions, (TEST @ HEAD.T + np.arange(C))[:, :5].argmax(1))


# The encoder.


def test_rose_has_nothing_to_evolve(one_device):
    """Features do not drift, W = I up to rounding, and RoSE is the nearest prototype."""
    still = Row("frozen", "none", "none", "ncm")
    sizes = (4, 2, 2)
    expected = follow(still, sizes, one_device)
    for plain, rose in zip(expected, follow(still._replace(test_time="rose"), sizes, one_device), strict=True):
        np.testing.assert_array_equal(rose.predictions, plain.predictions)
        np.testing.assert_allclose(rose.memory.mean, plain.memory.mean, atol=1e-4)
        moved = np.abs(rose.memory.mean - rose.unmoved)[rose.memory.origin >= 0]
        assert moved.max() < 1e-4, "the drift is 0"


def test_what_rose_solves_for_is_the_identity():
    """W itself, on the frozen encoder's pairs (z, z), in every direction that features have."""
    moved = evolve_features(TEST, TEST, np.eye(D, dtype=np.float32), MEANS[:1].astype(np.float32)).prototypes[:D]
    alive = np.arange(D) != 2
    np.testing.assert_allclose(moved[alive], np.eye(D)[alive], atol=1e-4)


@pytest.mark.parametrize("head", ["cosine", "linear"])
def test_the_first_task_s_loss(head):
    config = Config()
    config.scenario.task_sizes, config.frozen.head = (3, 2), head
    parts = make_parts(config, tiny.encoder(), 5, tiny.SHAPE)
    objective = make_objective("frozen", parts)
    task = Task(jnp.int32(0), jnp.int32(0), jnp.int32(3), jnp.float32(5e-4))
    trainable, kept = objective.begin(jax.random.key(0), None, task)
    images = np.random.default_rng(0).random((7, *tiny.SHAPE)).astype(np.float32)
    batch = Batch(images, np.array([0, 1, 2, 1, 0, 2, 2]), np.arange(7) < 6)
    if head == "cosine":
        assert float(trainable["head"]["scale"]) == 1
        trainable["head"]["scale"] = jnp.float32(3.0)
    else:
        trainable["head"]["bias"] = jnp.arange(5.0)
    value, _ = objective.loss(trainable, kept, None, batch, task, jax.random.key(1))
    variables = {"params": trainable["encoder"], "batch_stats": kept}
    features = tiny.features(variables, images, "batch", batch.mask)[:6]
    weight = np.asarray(trainable["head"]["weight"], float)
    logits = (
        3 * tiny.unit(features) @ tiny.unit(weight).T if head == "cosine" else features @ weight.T + np.arange(5)
    )
    assert float(value) == pytest.approx(tiny.mean_ce(logits[:, :3], batch.labels[:6]), rel=1e-4)
    train = objective.train
    assert (train.batch_size, train.first.epochs, train.later.epochs, train.adapt_lr) == (128, 200, 0, False)


def test_a_later_task_trains_nothing(tmp_path, one_device):
    config = tiny_run.get_config()
    config.methods = ("fetril", "fetril_fc", "fecam_1", "fecam", "frozen+rose")
    config.frozen.recipe.first.epochs = config.fetril.fc.epochs = 2
    with unpainted():
        results = experiment.run(validate(config), tmp_path, layout=one_device)
    stages = [snapshot_arrays(tmp_path / "checkpoints" / "frozen" / f"stage_00{k}") for k in range(3)]
    for name, array in stages[0].items():
        if "memory" not in name:
            np.testing.assert_array_equal(array, stages[2][name])
    assert len({stage["['memory']['mean']"].tobytes() for stage in stages}) == 3, "means of its own classes"
    np.testing.assert_array_equal(stages[2]["['projector']"], np.eye(16))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["task"] for line in lines} == {0}
    assert {name for name, score in results["scores"].items() if score["origin"] == "ours"} == {
        "fetril_fc",
        "frozen+rose",
    }


def test_a_cosine_decay():
    schedule = Schedule(200, 0.1, (), 5e-4, "cosine")
    assert [decayed(schedule, epoch) for epoch in (0, 100, 150)] == pytest.approx(
        [0.1, 0.05, 0.05 * (1 - 0.5**0.5)]
    )
    assert 0 < decayed(schedule, 199) < 1e-5


# Bad input.


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("frozen.recipe.later.epochs", 3, "frozen.recipe.later.epochs is 3; .*at most 0 .*the encoder is frozen"),
        ("frozen.recipe.first.milestones", (5,), r"first.decay cosine has no milestones, .*milestones is \(5,\)"),
        ("fecam.beta", 0.0, "fecam.beta is 0.0; .*above 0 and at most 1"),
        ("fecam.scatter", "between", "Unknown value of config.fecam.scatter 'between'"),
        ("fetril.svm_c", 0.0, "fetril.svm_c is 0.0; .*above 0"),
    ],
)
def test_options_that_are_refused(key, value, words):
    config = Config()
    experiment.put(config, key, value)
    with pytest.raises(UserError, match=words):
        validate(config)


def fit(classifier, features, labels):
    """At stage 0, of a view that has these features only."""
    config = Config()
    config.scenario.tasks, config.fecam.common_images = 1, "plain"
    if classifier == "within":
        classifier, config.fecam.scatter = "mahalanobis_common", "within"
    memory = ClassMemory(np.ones((2, 2), np.float32), np.zeros(2, np.int32))
    snapshots = [Snapshot(None, {"weight": np.ones((2, 2), np.float32)}, np.eye(2), memory, {})]
    view = FakeStage(0, snapshots=snapshots, train={0: np.array(features)}, labels=np.array(labels))
    return CLASSIFIERS[classifier].make(make_parts(config, None, 2, (1, 1, 3))).fit(None, memory, view)


@pytest.mark.parametrize(
    ("classifier", "features", "labels", "words"),
    [
        ("mahalanobis", [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], [0, 0, 1], r"class 1 .* has 1\. Row fecam_1"),
        ("mahalanobis", [[1.0, 2.0], [2.0, -1.0]], [0, 0], "needs features that are not negative.* gives -1"),
        ("mahalanobis", [[1.0, 2.0], [1.0, 2.0]], [0, 0], "all images of class 0 have one and the same feature"),
        ("mahalanobis_common", [[1.0, -2.0], [2.0, 1.0]], [0, 1], "config.fecam.beta=1"),
        ("mahalanobis_common", [[1.0, 2.0]], [0], "at least two images, and here there are 1"),
        ("within", [[1.0, 2.0], [2.0, 1.0]], [0, 1], "scatter within needs a class of at least two images"),
        ("svm", [[np.nan, 2.0]], [0], "no image of task 1 whose feature is finite"),
    ],
)
def test_features_that_are_refused(classifier, features, labels, words):
    with pytest.raises(UserError, match=words):
        fit(classifier, features, labels)


def test_rows_that_are_not_finite_are_left_out():
    plain = [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [3.0, 1.0]]
    labels = [0, 0, 1, 1]
    for classifier in ("mahalanobis", "mahalanobis_common", "svm"):
        expected = fit(classifier, plain, labels)
        found = fit(classifier, [*plain, [np.inf, 0.0]], [*labels, 1])
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


def test_test_images_that_cannot_be_scored():
    params = fit("mahalanobis", [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [3.0, 1.0]], [0, 0, 1, 1])
    classifier = CLASSIFIERS["mahalanobis"].make(make_parts(Config(), None, 2, (1, 1, 3)))
    memory = ClassMemory(jnp.ones((2, 2)), jnp.array([0, -1]))
    params["by_cosine"] = np.array(False)
    scores = classifier.logits(params, memory, jnp.array([[1.0, 1.0], [-1.0, 1.0], [jnp.nan, 1.0]]))
    assert np.isfinite(scores[0, 0])
    assert np.isneginf(scores[0, 1])
    assert np.isnan(scores[1:]).all()
