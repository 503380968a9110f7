"""Gradient descent on the drift map against Adam written out in NumPy, and against the closed form."""

import jax
import numpy as np
import pytest
from evolution_reference import KEY, features, wrap

from rose_jax.errors import UserError
from rose_jax.evolution import gd, offline_gd


class Adam:
    """lr 1e-3, β 0.9 and 0.999, ε 1e-8."""

    def __init__(self, shape):
        self.first, self.second, self.count = np.zeros(shape), np.zeros(shape), 0

    def step(self, gradient):
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        corrected = self.second / (1 - 0.999**self.count)
        return -1e-3 * self.first / (1 - 0.9**self.count) / (np.sqrt(corrected) + 1e-8)


@pytest.mark.parametrize("granularity", [1, 4])
def test_one_adam_step_per_group_on_the_incoming_pairs(granularity):
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(30), 30)
    under_test = wrap(gd(granularity=granularity))
    valid = np.arange(30) != 9
    z_old[9] = np.nan  # padding; its group is one image smaller, or makes no step
    state, scores = under_test.run((prototypes, moves, projector), z_old, z_new, valid, size=30)
    drift_map, adam = projector.astype(np.float64), Adam((24, 24))
    for start in range(0, 30, granularity):
        rows = [i for i in range(start, min(start + granularity, 30)) if valid[i]]
        if rows:
            residual = z_old[rows] @ drift_map - z_new[rows]
            drift_map = drift_map + adam.step(2 * z_old[rows].T @ residual / residual.size)
    np.testing.assert_allclose(under_test.evolver.map(state), drift_map, atol=2e-5)
    table = np.where(moves[:, None], prototypes @ drift_map, prototypes)
    np.testing.assert_allclose(under_test.evolver.prototypes(state), table, atol=1e-4)
    cosines = table @ z_new[-1] / np.linalg.norm(table, axis=1) / np.linalg.norm(z_new[-1])
    np.testing.assert_allclose(scores[-1], cosines, atol=1e-5)


def test_one_adam_step_per_image_on_the_whole_queue():
    *stage, z_old, z_new, _ = features(np.random.default_rng(31), 90)
    under_test = wrap(gd(queue=True, capacity=40, rebuild_every=30))
    before = under_test.start(*stage)
    queue_old = list(np.asarray(before.memory.queue.old, np.float64))
    queue_new = list(np.asarray(before.memory.queue.new, np.float64))
    drift_map, adam = stage[2].astype(np.float64), Adam((24, 24))
    for old, new in zip(z_old, z_new, strict=True):
        queue_old, queue_new = [*queue_old[1:], old], [*queue_new[1:], new]
        q, t = np.asarray(queue_old), np.asarray(queue_new)
        drift_map = drift_map + adam.step(2 * q.T @ (q @ drift_map - t) / q.size)
    state, _ = under_test.run(stage, z_old, z_new, size=90)
    # where a gradient is all rounding, Adam still steps by up to lr
    assert np.abs(under_test.evolver.map(state) - drift_map).mean() < 2e-4


def test_starting_points():
    *stage, projector, _, _, _ = features(np.random.default_rng(32), 1)
    maps = {name: gd(init=name) for name in ("trained", "identity", "random")}
    everything = np.ones(12, bool)
    maps = {name: e.map(e.init(*stage, everything, projector, KEY)) for name, e in maps.items()}
    np.testing.assert_array_equal(maps["trained"], projector)
    np.testing.assert_array_equal(maps["identity"], np.eye(24))
    assert 0.9 / np.sqrt(24) < np.abs(maps["random"]).max() <= 1 / np.sqrt(24)
    with pytest.raises(UserError, match="gd_init 'trian'"):
        gd(init="trian")


def test_offline_descent_reaches_the_closed_form():
    _, _, projector, z_old, z_new, _ = features(np.random.default_rng(33), 400)
    z_old[7, 0] = np.nan
    drift_map, info = offline_gd(z_old, z_new, projector)
    good = np.arange(400) != 7
    best = np.linalg.lstsq(z_old[good].astype(np.float64), z_new[good], rcond=None)
    closed = float(np.mean((z_old[good] @ best[0] - z_new[good]) ** 2))
    reached = float(np.mean((z_old[good] @ np.asarray(drift_map, np.float64) - z_new[good]) ** 2))
    assert info.converged
    np.testing.assert_allclose(info.closed_form_loss, closed, rtol=1e-6)
    np.testing.assert_allclose(info.loss, reached, rtol=1e-4)
    assert 0 <= info.gap < 0.02
    assert info.gap == pytest.approx(info.loss / info.closed_form_loss - 1)
    stopped, early = offline_gd(z_old, z_new, projector, max_steps=50)
    assert not early.converged
    assert early.steps == 50
    assert early.loss > info.loss
    assert isinstance(stopped, jax.Array)
