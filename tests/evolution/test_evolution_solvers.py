"""Both solvers against Alg. 2 in float64, and against each other; padding, bad rows, cuts of the stream."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evolution_reference import KEY, alg2, engine, features, queue_of, wrap

from rose_jax.evolution import predict, ridge_for, rose
from rose_jax.evolution.blocked import blocked
from rose_jax.evolution.linalg import eliminate_by_halves, eliminations

both = pytest.mark.parametrize("solver", ["direct", "blocked"])


@pytest.mark.parametrize(
    ("solver", "granularity", "capacity", "block", "n", "dead"),
    [
        ("direct", 1, 70, 16, 200, 0),
        ("direct", 50, 40, 16, 170, 4),
        ("blocked", 1, 70, 16, 200, 0),  # S no multiple of b, ragged end, every pseudo-feature leaves
        ("blocked", 1, 70, 16, 170, 4),
        ("blocked for tpu", 1, 70, 16, 200, 0),
        ("blocked for tpu", 3, 70, None, 100, 4),
        ("blocked", 1, 40, 64, 130, 0),  # b > S
        ("blocked", 3, 70, 16, 100, 4),
        ("blocked", 50, 40, 16, 170, 4),  # g > S
    ],
)
def test_equals_float64(solver, granularity, capacity, block, n, dead):
    *stage, z_old, z_new, _ = features(np.random.default_rng(0), n, dead=dead)
    prototypes, moves, _ = stage
    under_test = engine(solver, capacity, granularity, block)
    pseudo = queue_of(under_test.start(*stage))
    state, scores = under_test.run(stage, z_old, z_new)
    expected, moved = alg2(pseudo, *stage, z_old, z_new, 1e-4, granularity)
    np.testing.assert_allclose(scores, expected, atol=3e-5)
    np.testing.assert_allclose(under_test.evolver.prototypes(state), moved, atol=2e-4)
    np.testing.assert_allclose(prototypes[moves] @ under_test.evolver.map(state), moved[moves], atol=2e-4)
    assert state.counts.images == n
    assert state.counts.broken_steps == state.counts.bad_rows == 0


@both
def test_float64_is_exact(solver):
    with jax.enable_x64():
        *stage, z_old, z_new, _ = features(np.random.default_rng(1), 90)
        stage = [jnp.asarray(x, x.dtype if x.dtype == bool else jnp.float64) for x in stage]
        under_test = wrap(rose(50, 0.2, 1, solver, 1e-6, 16))
        pseudo = queue_of(under_test.start(*stage))
        state, scores = under_test.run(stage, z_old, z_new, size=90)
        expected, moved = alg2(pseudo, *stage, z_old, z_new, 1e-6)
        assert scores.dtype == np.float64
        np.testing.assert_allclose(scores, expected, atol=1e-10)
        np.testing.assert_allclose(under_test.evolver.prototypes(state), moved, atol=1e-9)


def test_direct_without_ridge_is_equation_12():
    *stage, z_old, z_new, _ = features(np.random.default_rng(2), 120)
    under_test = engine("direct", ridge=0.0)
    state, _ = under_test.run(stage, z_old, z_new)
    expected = np.linalg.lstsq(z_old[-70:].astype(np.float64), z_new[-70:], rcond=None)[0]
    np.testing.assert_allclose(under_test.evolver.map(state), expected, atol=2e-3)


def test_default_ridge_predicts_like_least_squares_where_that_is_well_posed():
    *stage, z_old, z_new, _ = features(np.random.default_rng(3), 200)
    under_test = engine(ridge=None)
    before = under_test.start(*stage)
    _, scores = under_test.run(stage, z_old, z_new)
    windows = (z_old[i - 70 : i].astype(np.float64) for i in range(70, 200, 10))
    assert min(np.linalg.eigvalsh(window.T @ window)[0] for window in windows) >= 100 * before.lam
    expected, _ = alg2(queue_of(before), *stage, z_old, z_new, rho=0.0)
    np.testing.assert_array_equal(predict(scores), expected.argmax(1))


@both
def test_a_queue_of_pseudo_features_gives_back_the_projector(solver):
    *stage, projector, _, _, _ = features(np.random.default_rng(4), 1)
    under_test = engine(solver)
    found = under_test.evolver.map(under_test.start(*stage, projector))
    np.testing.assert_allclose(found, projector, atol=1e-4 if solver == "direct" else 0)


@both
def test_unknown_directions_keep_the_projector(solver):
    *stage, z_old, z_new, _ = features(np.random.default_rng(5), 200, dead=3)
    under_test = engine(solver)
    state, _ = under_test.run(stage, z_old, z_new)
    rows_of_dead_channels = under_test.evolver.map(state)[:3]
    np.testing.assert_allclose(rows_of_dead_channels, stage[2][:3], atol=1e-3)
    assert state.counts.ill_posed_steps >= 200 - 70 - 16  # known per block, so up to a block late


@both
def test_padding_changes_nothing(solver):
    rng = np.random.default_rng(6)
    *stage, z_old, z_new, _ = features(rng, 110)
    state, scores = engine(solver).run(stage, z_old, z_new)
    where = np.sort(rng.permutation(200)[:110])
    padded_old, padded_new = np.full((2, 200, 24), np.nan, np.float32)
    padded_old[where], padded_new[where] = z_old, z_new
    valid = np.isin(np.arange(200), where)
    padded_state, padded_scores = engine(solver).run(stage, padded_old, padded_new, valid)
    np.testing.assert_allclose(padded_scores[where], scores, atol=2e-5)
    np.testing.assert_array_equal(queue_of(padded_state), queue_of(state))
    assert padded_state.counts.images == 110
    assert padded_state.counts.bad_rows == 0


@both
def test_how_the_stream_is_cut_changes_nothing(solver):
    *stage, z_old, z_new, _ = features(np.random.default_rng(7), 150)
    under_test = engine(solver)
    whole, scores = under_test.run(stage, z_old, z_new)
    state, pieces = under_test.start(*stage), []
    for first, last in itertools.pairwise([0, 1, 2, 2, 76, 150]):
        rows, everything = slice(first, last), np.ones(last - first, bool)
        state, piece = under_test.step(state, z_old[rows], z_new[rows], everything, everything)
        pieces.append(piece)
    np.testing.assert_allclose(np.concatenate(pieces), scores, atol=2e-5)
    prototypes = under_test.evolver.prototypes
    np.testing.assert_allclose(prototypes(state), prototypes(whole), atol=1e-4)


@both
def test_bad_rows_stay_out_of_the_queue(solver):
    *stage, z_old, z_new, _ = features(np.random.default_rng(8), 120)
    spoiled_old, spoiled_new = z_old.copy(), z_new.copy()
    spoiled_old[5, 0], spoiled_new[33, 7], spoiled_new[34] = np.inf, np.nan, -np.inf
    good = ~np.isin(np.arange(120), [5, 33, 34])
    state, scores = engine(solver).run(stage, spoiled_old, spoiled_new)
    expected_state, expected = engine(solver).run(stage, z_old[good], z_new[good])
    np.testing.assert_array_equal(predict(scores)[~good], -1)
    np.testing.assert_allclose(scores[good], expected, atol=2e-5)
    np.testing.assert_array_equal(queue_of(state), queue_of(expected_state))
    assert state.counts.bad_rows == 3


@both
def test_images_outside_the_budget_are_scored_but_not_queued(solver):
    *stage, z_old, z_new, _ = features(np.random.default_rng(9), 200)
    enters = np.arange(200) % 2 == 0
    z_old[~enters] = np.nan  # never computed
    pseudo = queue_of(engine(solver).start(*stage))
    state, scores = engine(solver).run(stage, z_old, z_new, enters=enters)
    expected, moved = alg2(pseudo, *stage, z_old, z_new, 1e-4, enters=enters)
    np.testing.assert_allclose(scores, expected, atol=3e-5)
    np.testing.assert_allclose(engine(solver).evolver.prototypes(state), moved, atol=2e-4)
    assert state.counts.bad_rows == 0


@both
def test_a_larger_table_changes_nothing(solver):
    """One executable serves every stage: the table has its final size, unseen rows score -inf."""
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(10), 60)
    under_test = engine(solver)
    _, scores = under_test.run((prototypes, moves, projector), z_old, z_new)
    wide = np.zeros((30, 24), np.float32), np.zeros(30, bool), projector, np.arange(30) < 12
    wide[0][:12], wide[1][:12] = prototypes, moves
    _, wide_scores = under_test.run(wide, z_old, z_new)
    np.testing.assert_allclose(wide_scores[:, :12], scores, atol=2e-6)
    assert np.isneginf(wide_scores[:, 12:]).all()


@pytest.mark.parametrize(("granularity", "capacity"), [(1, 70), (50, 40)])
@pytest.mark.parametrize("outlier", [1e12, 1e25])
def test_an_outlier_leaves_no_trace_once_it_has_left(granularity, capacity, outlier):
    """1e25 overflows G: updates are kept back while it is queued. 1e12 would leave rounding far above G."""
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(11), 400)
    z_old[13] *= outlier
    under_test = engine("blocked", capacity, granularity)
    state = under_test.start(prototypes, moves, projector)
    everything = np.ones(200, bool)
    state, scores = under_test.step(state, z_old[:200], z_new[:200], everything, everything)
    assert np.isfinite(scores).all()
    if outlier == 1e25:
        assert state.counts.broken_steps >= (1 if granularity == 50 else 50)
    state, _ = under_test.step(state, z_old[200:], z_new[200:], everything, everything)
    queue_old, queue_new = z_old[-capacity:].astype(np.float64), z_new[-capacity:].astype(np.float64)
    ridge = float(state.lam) * np.eye(24)
    drift_map = np.linalg.solve(queue_old.T @ queue_old + ridge, queue_old.T @ queue_new + ridge @ projector)
    found = under_test.evolver.prototypes(state)
    np.testing.assert_allclose(found[moves], prototypes[moves] @ drift_map, atol=2e-4)


def test_sums_do_not_drift():
    *stage, z_old, z_new, _ = features(np.random.default_rng(12), 2000)
    everything = np.ones(200, bool)
    gram = z_old[-70:].T.astype(np.float64) @ z_old[-70:]
    for under_test, bound in ((engine(), 1e-5), (wrap(blocked(70, 0.2, 1, 1e-4, 16, rebuild_every=100)), 1e-6)):
        state = under_test.start(*stage)
        for first in range(0, 2000, 200):
            rows = slice(first, first + 200)
            state, _ = under_test.step(state, z_old[rows], z_new[rows], everything, everything)
        assert np.abs(state.sums[:, :24] - state.lam * np.eye(24) - gram).max() <= bound * np.abs(gram).max()


def test_state_is_small():
    prototypes = np.ones((100, 512), np.float32)
    state = jax.eval_shape(rose().init, prototypes, np.ones(100, bool), np.ones(100, bool), np.eye(512), KEY)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert size <= 2 * 4 * (2 * 3000 * 512 + 3 * 512 * 512)


def test_short_queues_get_a_larger_ridge_and_a_note():
    assert ridge_for(3000, 512)[1] is None
    rho, note = ridge_for(500, 512)
    assert rho == 1e-3
    assert "500" in note
    assert ridge_for(500, 512, 1e-5)[0] == 1e-5
    assert ridge_for(500, 512, 1e-5)[1] is not None
    assert ridge_for(3000, 512, 0.0) == (0.0, None)


def alone(matrix, right):
    return eliminations(matrix)[0](right)


def beside_another(matrix, right):
    return eliminations(jnp.eye(len(matrix)), matrix)[1](right)


@pytest.mark.parametrize("elimination", [alone, beside_another, eliminate_by_halves])
@pytest.mark.parametrize("size", [1, 5, 16, 45, 256])
def test_elimination_has_leading_factors(elimination, size):
    """Of the leading block too: pivots are those of float64's LDLᵀ, and the right side is that of L⁻¹."""
    rng = np.random.default_rng(13)
    u = rng.normal(size=(size, 60)) / 20
    matrix = np.diag(np.where(np.arange(size) % 2, -1.0, 1.0)) + u @ u.T
    right = rng.normal(size=(size, 7))
    lower, pivots, rest = np.eye(size), np.zeros(size), matrix.copy()
    for j in range(size):
        pivots[j] = rest[j, j]
        lower[j:, j] = rest[j:, j] / pivots[j]
        rest = rest - np.outer(rest[:, j], rest[j]) / pivots[j]
    np.testing.assert_allclose((lower * pivots) @ lower.T, matrix, atol=1e-12)
    reduced, found = jax.jit(elimination)(jnp.asarray(matrix, jnp.float32), jnp.asarray(right, jnp.float32))
    np.testing.assert_allclose(found, pivots, atol=2e-6)
    np.testing.assert_allclose(reduced, np.linalg.solve(lower, right), atol=5e-6)


def test_elimination_by_halves_keeps_what_comes_before_a_break():
    matrix = np.eye(40, dtype=np.float32)
    matrix[20, 20] = np.nan
    reduced, pivots = jax.jit(eliminate_by_halves)(jnp.asarray(matrix), jnp.ones((40, 3)))
    np.testing.assert_array_equal(pivots[:20], 1)
    np.testing.assert_array_equal(reduced[:20], 1)
    assert not np.isfinite(pivots[20])
