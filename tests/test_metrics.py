"""Metrics on a case small enough to do by hand."""

import numpy as np
import pytest

from rose_jax.run import accuracy as metrics

TASKS = np.array([0, 0, 1, 2, 2])  # five classes in three uneven tasks


def test_summary_by_hand():
    labels = [np.array([0, 0, 1]), np.array([0, 0, 1, 2, 2]), np.array([0, 0, 1, 2, 2, 3, 4, 4, 4])]
    predictions = [np.array([0, 1, 1]), np.array([0, 2, 2, 2, 2]), np.array([0, 0, 3, 2, -1, 3, 4, 0, 0])]
    out = metrics.summary(labels, predictions, TASKS, "cold")
    # stage 1: classes 0 at 50, 1 at 100; stage 2: 50, 0, 100; stage 3: 100, 0, 50, 100, 33.3
    assert out["per_stage"] == pytest.approx([75, 50, (100 + 0 + 50 + 100 + 100 / 3) / 5])
    assert out["last"] == pytest.approx(out["per_stage"][-1])
    assert out["average"] == pytest.approx(np.mean(out["per_stage"]))
    nan = float("nan")
    np.testing.assert_allclose(
        out["matrix"], [[75, nan, nan], [25, 100, nan], [50, 50, (100 + 100 / 3) / 2]], equal_nan=True
    )
    assert out["forgetting"] == pytest.approx(((75 - 50) + (100 - 50)) / 2)
    assert out["old"] == pytest.approx((100 + 0 + 50) / 3)
    assert out["new"] == pytest.approx((100 + 100 / 3) / 2)
    assert out["confusion"] == [[2, 0, 1], [0, 1, 0], [2, 0, 2]]  # the unscored image is in no column
    warm = metrics.summary(labels, predictions, TASKS, "warm")
    assert warm["old"] == pytest.approx(50)
    assert warm["new"] == pytest.approx((50 + 100 + 100 / 3) / 3)


def test_one_stage_has_no_forgetting():
    out = metrics.summary([np.array([0])], [np.array([0])], np.array([0]), "cold")
    assert np.isnan(out["forgetting"])
    assert out["last"] == 100


def test_drift_cosine():
    unmoved = np.zeros((3, 2))
    moved = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    true_old, true_new = np.ones((3, 2)), np.ones((3, 2)) + [[2.0, 0.0]]
    np.testing.assert_allclose(
        metrics.drift_cosines(moved, unmoved, true_new, true_old), [1, 0.5**0.5, np.nan], equal_nan=True
    )
