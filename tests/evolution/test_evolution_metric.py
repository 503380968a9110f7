"""Scores in another metric than the plain cosine, against float64; the same for every evolver."""

import jax.numpy as jnp
import numpy as np
import pytest
from evolution_reference import alg2, engine, features, queue_of, wrap

from rose_jax.evolution import Metric, gd
from rose_jax.evolution.core import score_table

RNG = np.random.default_rng(20)
CENTER, TRANSFORM = RNG.normal(size=24), np.eye(24) + 0.3 * RNG.normal(size=(24, 24))
METRIC = Metric(jnp.asarray(CENTER, jnp.float32), jnp.asarray(TRANSFORM, jnp.float32))


@pytest.mark.parametrize(
    ("solver", "granularity", "capacity"), [("direct", 1, 70), ("blocked", 1, 70), ("blocked", 50, 40)]
)
def test_scores_in_a_metric(solver, granularity, capacity):
    *stage, z_old, z_new, _ = features(np.random.default_rng(21), 150)
    under_test = engine(solver, capacity, granularity)
    pseudo = queue_of(under_test.start(*stage))
    state, scores = under_test.run(stage, z_old, z_new, metric=METRIC)
    expected, moved = alg2(pseudo, *stage, z_old, z_new, 1e-4, granularity, center=CENTER, transform=TRANSFORM)
    np.testing.assert_allclose(scores, expected, atol=5e-5)
    np.testing.assert_allclose(under_test.evolver.prototypes(state), moved, atol=2e-4)


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_another_metric_midway(solver):
    *stage, z_old, z_new, _ = features(np.random.default_rng(22), 200)
    under_test = engine(solver)
    pseudo = queue_of(under_test.start(*stage))
    plain = Metric(jnp.zeros(24), jnp.eye(24))
    state, first = under_test.run(stage, z_old[:100], z_new[:100], metric=plain)
    state = under_test.evolver.with_metric(state, METRIC)
    rows = [np.pad(x[100:], ((0, 100), (0, 0))) for x in (z_old, z_new)]
    valid = np.arange(200) < 100
    state, second = under_test.step(state, *rows, valid, valid)
    cosines, _ = alg2(pseudo, *stage, z_old, z_new, 1e-4)
    whitened, moved = alg2(pseudo, *stage, z_old, z_new, 1e-4, center=CENTER, transform=TRANSFORM)
    np.testing.assert_allclose(first, cosines[:100], atol=5e-5)
    np.testing.assert_allclose(second[:100], whitened[100:], atol=5e-5)
    np.testing.assert_allclose(under_test.evolver.prototypes(state), moved, atol=2e-4)


def test_gradient_descent_moves_the_same_whatever_the_metric():
    *stage, z_old, z_new, _ = features(np.random.default_rng(23), 20)
    under_test = wrap(gd())
    plain, _ = under_test.run(stage, z_old, z_new, size=20)
    state, scores = under_test.run(stage, z_old, z_new, metric=METRIC, size=20)
    np.testing.assert_allclose(state.moved, plain.moved, atol=1e-6)
    table = (np.asarray(plain.moved, np.float64) - CENTER) @ TRANSFORM
    last = (z_new[-1] - CENTER) @ TRANSFORM
    expected = table @ last / np.linalg.norm(table, axis=1) / np.linalg.norm(last)
    np.testing.assert_allclose(scores[-1], expected, atol=1e-5)


def test_with_metric_asks_for_one_from_the_start():
    *stage, _, _, _ = features(np.random.default_rng(24), 1)
    state = engine("blocked").start(*stage)
    with pytest.raises(ValueError, match="init was given a metric"):
        engine("blocked").evolver.with_metric(state, METRIC)


def test_score_table_without_a_metric_is_the_cosine():
    rng = np.random.default_rng(23)
    z, table, seen = rng.normal(size=(5, 6)), rng.normal(size=(4, 6)), np.arange(4) != 2
    scores = score_table(*(jnp.asarray(x, jnp.float32) for x in (z, table)), jnp.asarray(seen))
    cosines = z @ table.T / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(table, axis=1)[None, :]
    np.testing.assert_allclose(scores, np.where(seen, cosines, -np.inf), atol=1e-6)
