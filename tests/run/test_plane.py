"""The plane of the last stage: its directions, and the paths of prototypes from where they were left to where they end."""

import jax
import numpy as np
import pytest

from rose_jax import experiment
from rose_jax.run import plane
from rose_jax.runtime.files import read_arrays
from rose_jax.runtime.sharding import Layout

LAST, OLD = 2, 7  # of tests/tiny_run.py: tasks of 4, 3 and 3 classes


def outcome(workdir, row, stage):
    (path,) = (workdir / "scores").glob(f"{row}_*_stage_{stage:03d}.npz")
    return read_arrays(path)


@pytest.fixture(scope="module")
def projector(finished):
    """Of the last task."""
    with experiment.open_run(finished[0], layout=Layout(jax.devices()[:1])) as run:
        return np.asarray(run.trajectory("base")[LAST].projector, np.float64)


@pytest.mark.parametrize("row", ["rose", "gd"])
def test_a_path_leads_from_the_projectors_place_to_the_end(finished, row, projector):
    saved = outcome(finished[0], row, LAST)
    moved = saved["unmoved"].astype(np.float64)
    moved[:OLD] = moved[:OLD] @ projector
    np.testing.assert_allclose(saved["path"][0], moved, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(saved["path"][-1], saved["mean"])
    assert len(saved["path"]) == 1 + 3  # 359 images in calls of 128
    assert (np.diff(saved["path"][:, OLD:], axis=0) == 0).all(), "new classes do not move"
    assert (np.abs(np.diff(saved["path"][:, :OLD], axis=0)).max((1, 2)) > 0).all(), "old ones do in every call"


def test_only_the_last_stage_keeps_its_path(finished):
    assert "path" not in outcome(finished[0], "rose", LAST - 1)
    assert "path" not in outcome(finished[0], "projector", LAST), "whose prototypes do not move in the stream"


def test_results_have_the_paths_in_the_plane_of_the_test_features(finished):
    workdir, results = finished
    told = results["planes"]["base"]
    assert told["classes"] == list(range(OLD))
    with experiment.open_run(workdir, layout=Layout(jax.devices()[:1])) as run:
        trajectory = run.trajectory("base")
        assert told["encoders"] == trajectory.digest(LAST)
        stream = trajectory.images.stream(LAST)
        features = trajectory.view(LAST, stream).test_features(LAST).astype(np.float64)
        labels = trajectory.images.labels["test"][stream]
    unit = features / np.linalg.norm(features, axis=1)[:, None]
    # All 36 images or so of each of the ten classes are shown, so that the plane is that of the whole stream.
    values, vectors = np.linalg.eigh(np.cov(unit.T))
    axes = vectors[:, ::-1][:, :2] * np.sign(
        vectors[:, ::-1][:, :2][np.abs(vectors[:, ::-1][:, :2]).argmax(0), [0, 1]]
    )

    def place(x):
        return (x / np.linalg.norm(x, axis=-1, keepdims=True) - unit.mean(0)) @ axes

    order = np.argsort(labels, kind="stable")
    assert told["labels"] == labels[order].tolist()
    np.testing.assert_allclose(told["points"], place(features[order]), atol=1e-3)
    for row in ("base", "projector", "rose"):
        saved, path = outcome(workdir, row, LAST), np.array(results["scores"][row]["path"])
        np.testing.assert_allclose(path[0], place(saved["unmoved"][:OLD]), atol=1e-3)
        np.testing.assert_allclose(path[-1], place(saved["mean"][:OLD]), atol=1e-3)
    base = np.array(results["scores"]["base"]["path"])
    assert base.shape == (2, OLD, 2)
    assert (base[0] == base[1]).all()
    means = np.array(told["true_means"])
    assert np.abs(means).max() <= 2
    assert (
        np.linalg.norm(means - place(np.array([features[labels == c].mean(0) for c in range(OLD)])), axis=1).max()
        < 0.3
    )


@pytest.mark.parametrize(
    ("count", "most", "chosen"), [(3, 8, [0, 1, 2]), (8, 8, [*range(8)]), (90, 4, [0, 30, 59, 89]), (1, 8, [0])]
)
def test_many_classes_are_thinned_out_evenly(count, most, chosen):
    assert plane.spread_evenly(count, most).tolist() == chosen


def test_directions_do_not_depend_on_the_sign_that_lapack_returns():
    x = np.random.RandomState(0).randn(50, 6) * (5, 4, 3, 2, 1, 1)
    center, axes = plane.principal(x)
    again, flipped = plane.principal(-x)
    np.testing.assert_allclose(flipped, axes, atol=1e-12)
    np.testing.assert_allclose(again, -center)
    np.testing.assert_allclose(axes.T @ axes, np.eye(2), atol=1e-12)
    assert plane.principal(np.ones((1, 6)))[1].shape == (6, 2)
