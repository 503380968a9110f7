"""The queue's own metric, image by image, against float64 inverses of the whole queue's Gram matrix."""

import jax.numpy as jnp
import numpy as np
import pytest
from evolution_reference import alg2, engine, features, queue_of, wrap

from rose_jax.errors import UserError
from rose_jax.evolution import QueueMetric, gd

RIDGE = 0.01
METRIC = QueueMetric(jnp.float32(RIDGE))


@pytest.mark.parametrize(
    ("solver", "granularity", "capacity"),
    [("direct", 1, 70), ("blocked", 1, 70), ("blocked for tpu", 1, 70), ("blocked", 4, 70), ("blocked", 50, 40)],
)
def test_every_image_past_the_length_of_the_queue(solver, granularity, capacity):
    *stage, z_old, z_new, _ = features(np.random.default_rng(31), 200)
    enters = np.arange(200) % 7 != 3
    under_test = engine(solver, capacity, granularity)
    pseudo = queue_of(under_test.start(*stage))
    state, scores = under_test.run(stage, z_old, z_new, enters=enters, metric=METRIC)
    expected, moved = alg2(pseudo, *stage, z_old, z_new, 1e-4, granularity, enters=enters, queue_ridge=RIDGE)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_allclose(under_test.evolver.prototypes(state), moved, atol=2e-4)
    now = under_test.evolver.metric(state)
    table, last = moved @ np.asarray(now.transform), z_new[-1] @ np.asarray(now.transform)
    cosines = table @ last / np.linalg.norm(table, axis=1) / np.linalg.norm(last)
    np.testing.assert_allclose(cosines, expected[-1], atol=1e-4)


def test_prototypes_move_the_same_whatever_the_metric():
    *stage, z_old, z_new, _ = features(np.random.default_rng(32), 150)
    plain, _ = engine("blocked").run(stage, z_old, z_new)
    state, _ = engine("blocked").run(stage, z_old, z_new, metric=METRIC)
    np.testing.assert_array_equal(state.moved, plain.moved)
    np.testing.assert_array_equal(state.sums, plain.sums)


def test_dead_channels_a_short_queue_and_unreadable_rows_stay_finite():
    *stage, z_old, z_new, _ = features(np.random.default_rng(33), 60, dead=6)
    z_new[10, 3] = np.nan
    under_test = engine("blocked", capacity=10, ridge=1e-3)  # a queue of 10 in 24 dimensions
    state, scores = under_test.run(stage, z_old, z_new, metric=METRIC)
    assert np.isnan(scores[10]).all()
    assert np.isfinite(np.delete(scores, 10, axis=0)).all()
    assert int(state.counts.broken_steps) == 0
    assert np.isfinite(np.asarray(under_test.evolver.metric(state).transform)).all()


def test_without_any_new_feature_it_is_the_plain_cosine():
    *stage, z_old, z_new, _ = features(np.random.default_rng(34), 12)
    stage[2] = 0 * stage[2]  # W0 = 0: the queue is filled with zeros, so that lambda is 0
    nothing = np.zeros(12, bool)
    under_test = engine("blocked")
    plain = under_test.run(stage, z_old, z_new, enters=nothing)[1]
    np.testing.assert_allclose(
        under_test.run(stage, z_old, z_new, enters=nothing, metric=METRIC)[1], plain, atol=1e-6
    )


def test_an_outlier_that_has_left_leaves_nothing_behind():
    *stage, z_old, z_new, _ = features(np.random.default_rng(35), 200)
    outlier = z_new.copy()
    outlier[20] *= 1e4
    under_test = engine("blocked")
    clean = under_test.run(stage, z_old, z_new, metric=METRIC)[1]
    found = under_test.run(stage, z_old, outlier, metric=METRIC)[1]
    np.testing.assert_allclose(found[128:], clean[128:], atol=1e-3)  # it leaves with image 90; chunks have 64


def test_gradient_descent_on_a_queue():
    *stage, z_old, z_new, _ = features(np.random.default_rng(36), 30)
    under_test = wrap(gd(queue=True, capacity=20))
    state, scores = under_test.run(stage, z_old, z_new, metric=METRIC, size=30)
    first = under_test.start(*stage, metric=METRIC).memory
    new = np.concatenate([np.asarray(first.queue.new, np.float64), z_new])[-20:]
    lam = RIDGE * np.square(np.asarray(first.queue.new, np.float64)).sum() / 24
    inverse = np.linalg.inv(new.T @ new + lam * np.eye(24))
    moved, z = np.asarray(state.moved, np.float64), np.asarray(z_new[-1], np.float64)
    expected = moved @ inverse @ z / np.sqrt(np.einsum("cd,de,ce->c", moved, inverse, moved) * (z @ inverse @ z))
    np.testing.assert_allclose(scores[-1], expected, atol=1e-4)


def test_a_metric_of_a_queue_asks_for_a_queue():
    *stage, _, _, _ = features(np.random.default_rng(37), 1)
    with pytest.raises(UserError, match="gd keeps no queue"):
        wrap(gd()).start(*stage, metric=METRIC)
