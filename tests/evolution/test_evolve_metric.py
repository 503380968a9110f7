"""A metric for anybody's features, what a caller may get wrong about it, and the face of the package."""

import numpy as np
import pytest
from evolution_reference import features

import rose_jax
from rose_jax import evolve_features, within_class_covariance
from rose_jax.errors import UserError
from rose_jax.evolve import baselines

D, OLD, NEW = 12, 8, 4
OPTIONS = {"capacity": 200, "alpha": 0.1, "ridge": 1e-4}


@pytest.fixture(scope="module")
def shared_direction():
    """Classes that differ a little, along a direction in which all of them vary a lot."""
    rng = np.random.default_rng(70)
    centres = 1 + rng.normal(size=(OLD + NEW, D))
    strong = rng.normal(size=D)
    drift = np.eye(D) + 0.2 * rng.normal(size=(D, D))

    def draw(labels):
        along = 3 * rng.normal(size=(len(labels), 1)) * strong
        return centres[labels] + along + 0.2 * rng.normal(size=(len(labels), D))

    train = np.repeat(np.arange(OLD + NEW), 100)
    before, labels = draw(train), rng.integers(0, OLD + NEW, 640)
    stream = draw(labels)
    means = np.stack([before[train == c].mean(0) for c in range(OLD + NEW)])
    old = train < OLD
    arrays = {
        "z_old": stream,
        "z_new": stream @ drift + 0.05 * rng.normal(size=stream.shape),
        "old_prototypes": means[:OLD],
        "new_prototypes": means[OLD:] @ drift,
    }
    covariances = {
        "old_covariance": within_class_covariance(before[old], train[old]),
        "new_covariance": within_class_covariance(before[~old] @ drift, train[~old] - OLD),
    }
    return arrays, covariances, labels


def test_a_metric_beats_the_plain_cosine(shared_direction):
    arrays, covariances, labels = shared_direction
    plain = evolve_features(**arrays, **OPTIONS)
    queue = evolve_features(**arrays, **OPTIONS, metric="queue")
    evolved = evolve_features(**arrays, **covariances, **OPTIONS, metric="evolved")
    right = [np.mean(found.predictions == labels) for found in (plain, queue, evolved)]
    assert right[1] > right[0] + 0.2
    assert right[2] > right[0] + 0.2
    np.testing.assert_array_equal(plain.prototypes, queue.prototypes)  # the same move, another comparison
    assert plain.covariance is None
    # what the next task's call takes: W^T Sigma W + R of the old classes, and the new ones', by their number
    w = np.linalg.lstsq(arrays["z_old"][-200:], arrays["z_new"][-200:], rcond=None)[0]
    error = arrays["z_new"] - arrays["z_old"] @ w
    moved = w.T @ covariances["old_covariance"] @ w + error.T @ error / len(error)
    expected = (OLD * moved + NEW * covariances["new_covariance"]) / (OLD + NEW)
    np.testing.assert_allclose(evolved.covariance, expected, rtol=2e-2, atol=2e-2)


def test_tasks_are_chained_by_what_a_call_returns(shared_direction):
    arrays, covariances, _ = shared_direction
    first = evolve_features(**arrays, **covariances, **OPTIONS, metric="evolved")
    second = evolve_features(
        arrays["z_new"],
        arrays["z_new"],
        first.prototypes,
        np.zeros((0, D)),
        old_covariance=first.covariance,
        **OPTIONS,
        metric="evolved",
    )
    np.testing.assert_allclose(second.prototypes, first.prototypes, atol=1e-2)  # nothing has drifted since
    np.testing.assert_allclose(second.covariance, first.covariance, rtol=1e-2, atol=1e-2)


def test_covariance_within_classes():
    rng = np.random.default_rng(71)
    rows, labels = rng.normal(size=(30, 3)), np.repeat([0, 1, 3], 10)
    expected = np.mean([np.cov(rows[labels == c].T) for c in (0, 1, 3)], 0)
    np.testing.assert_allclose(within_class_covariance(rows, labels), expected, atol=1e-6)
    with pytest.raises(UserError, match="No class has two readable images"):
        within_class_covariance(rows[:2], np.array([0, 1]))
    with pytest.raises(UserError, match=r"labels has shape \(2,\)"):
        within_class_covariance(rows, np.array([0, 1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(metric="que"), "Unknown metric 'que'. Did you mean 'queue'"),
        (dict(metric="evolved"), "needs old_covariance and new_covariance.*metric='queue' needs neither"),
        (dict(metric="evolved", old_covariance=np.eye(D)), "needs new_covariance"),
        (dict(metric="queue", old_covariance=np.eye(D)), "old_covariance is read with metric='evolved' only"),
        (dict(metric="evolved", old_covariance=np.eye(3), new_covariance=np.eye(D)), "old_covariance has shape"),
        (dict(metric_ridge=0.1), "metric_ridge 0.1 needs a metric"),
        (dict(metric="queue", metric_ridge=-1.0), "metric_ridge must be a finite number"),
        (dict(metric="queue", metric_ridge=float("nan")), "metric_ridge must be a finite number"),
    ],
    ids=str,
)
def test_what_a_metric_needs_is_said(shared_direction, options, message):
    with pytest.raises(UserError, match=message):
        evolve_features(**shared_direction[0], **options)


class Tensor:
    """A torch tensor that requires grad, as far as NumPy sees it."""

    __module__ = "torch"

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_torch_tensors_are_told_what_to_pass(shared_direction):
    with pytest.raises(UserError, match=r"z_old is not an array.*pass x.detach\(\).cpu\(\).float\(\)"):
        evolve_features(**shared_direction[0] | {"z_old": Tensor()})


@pytest.mark.parametrize("with_projector", [True, False])
def test_swapped_encoders_are_noticed(with_projector):
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(72), 200)
    arrays = {"z_old": z_old, "z_new": z_new, "old_prototypes": prototypes[moves]}
    arrays["new_prototypes"] = prototypes[~moves]
    if with_projector:
        arrays["projector"] = projector
    assert not baselines.looks_swapped(arrays)
    assert baselines.looks_swapped(arrays | {"z_old": z_new, "z_new": z_old})
    assert not baselines.looks_swapped(arrays | {"z_old": z_old[:0], "z_new": z_new[:0]})


def test_the_face_of_the_package():
    assert set(dir(rose_jax)) >= {"Evolution", "evolve_features", "within_class_covariance", "__version__"}
    assert rose_jax.__version__.count(".") == 2
    assert issubclass(rose_jax.UserError, ValueError)
    with pytest.raises(AttributeError, match="no attribute 'evolv'"):
        rose_jax.evolv  # noqa: B018
