"""Both solvers against Alg. 2 in float64, and against each other; padding, bad rows, cuts of the stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evolution_oracle import evolve, features

from rose_jax.evolution import predict, ridge_for, rose
from rose_jax.evolution.blocked import blocked
from rose_jax.evolution.linalg import ldl

KEY = jax.random.key(3)


def start(evolver, prototypes, moves, projector, seen=None, metric=None):
    seen = np.ones(len(moves), bool) if seen is None else seen
    return jax.jit(evolver.init)(prototypes, moves, seen, projector, KEY, metric)


def pseudo_of(state):
    return np.asarray(state.old if hasattr(state, "old") else state.queue.old)


def run(evolver, stage, z_old, z_new, valid=None, enters=None):
    state = start(evolver, *stage)
    valid = np.ones(len(z_new), bool) if valid is None else valid
    state, scores = jax.jit(evolver.step)(state, z_old, z_new, valid, enters)
    return state, np.asarray(scores)


@pytest.mark.parametrize("solver", ["direct", "blocked"])
@pytest.mark.parametrize(
    ("granularity", "capacity", "block", "n", "dead"),
    [
        (1, 70, 16, 200, 0),  # S no multiple of b, ragged end, every pseudo-feature leaves
        (1, 70, 16, 200, 4),
        (1, 40, 64, 130, 0),  # b > S
        (3, 70, 16, 100, 0),
        (7, 40, 16, 100, 4),
        (50, 40, 16, 170, 0),  # g > S
        (64, 70, 16, 30, 0),  # g > n
    ],
)
def test_equals_float64(solver, granularity, capacity, block, n, dead):
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(0), n, dead=dead)
    evolver = rose(capacity, 0.2, granularity, solver, 1e-4, block)
    pseudo = pseudo_of(start(evolver, prototypes, moves, projector))
    state, scores = run(evolver, (prototypes, moves, projector), z_old, z_new)
    expected, moved = evolve(pseudo, prototypes, moves, projector, z_old, z_new, 1e-4, granularity)
    np.testing.assert_allclose(scores, expected, atol=3e-5)
    np.testing.assert_allclose(evolver.prototypes(state), moved, atol=2e-4)
    np.testing.assert_allclose(prototypes[moves] @ evolver.map(state), moved[moves], atol=2e-4)
    assert state.counts.images == n
    assert state.counts.broken_steps == state.counts.bad_rows == 0


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_float64_is_exact(solver):
    with jax.enable_x64():
        prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(1), 90)
        stage = [
            jnp.asarray(x, x.dtype if x.dtype == bool else jnp.float64) for x in (prototypes, moves, projector)
        ]
        evolver = rose(50, 0.2, 1, solver, 1e-6, 16)
        pseudo = pseudo_of(start(evolver, *stage))
        state, scores = run(evolver, stage, z_old, z_new)
        expected, moved = evolve(pseudo, *stage, z_old, z_new, 1e-6)
        assert scores.dtype == np.float64
        np.testing.assert_allclose(scores, expected, atol=1e-10)
        np.testing.assert_allclose(evolver.prototypes(state), moved, atol=1e-9)


def test_direct_without_ridge_is_equation_12():
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(2), 120)
    evolver = rose(60, 0.2, 1, "direct", ridge=0.0)
    state, _ = run(evolver, (prototypes, moves, projector), z_old, z_new)
    expected = np.linalg.lstsq(z_old[-60:].astype(np.float64), z_new[-60:], rcond=None)[0]
    np.testing.assert_allclose(evolver.map(state), expected, atol=2e-3)


def test_default_ridge_predicts_like_least_squares_where_that_is_well_posed():
    rng = np.random.default_rng(3)
    prototypes, moves, projector, z_old, z_new, _ = features(rng, 300, dim=32, classes=20, old=16)
    capacity = 100
    evolver = rose(capacity, 0.2)
    before = start(evolver, prototypes, moves, projector)
    _, scores = run(evolver, (prototypes, moves, projector), z_old, z_new)
    smallest = min(
        np.linalg.eigvalsh(z_old[i - capacity : i].T.astype(np.float64) @ z_old[i - capacity : i])[0]
        for i in range(capacity, 300, 20)
    )
    assert smallest >= 100 * before.lam
    expected, _ = evolve(pseudo_of(before), prototypes, moves, projector, z_old, z_new, rho=0.0)
    np.testing.assert_array_equal(predict(scores), expected.argmax(1))


def test_a_queue_of_pseudo_features_gives_back_the_projector():
    prototypes, moves, projector, *_ = features(np.random.default_rng(4), 1)
    for solver, tolerance in (("direct", 1e-2), ("blocked", 0)):
        evolver = rose(80, 0.02, solver=solver)
        state = start(evolver, prototypes, moves, projector)
        np.testing.assert_allclose(evolver.map(state), projector, atol=tolerance)


def test_unknown_directions_keep_the_projector():
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(5), 200, dead=3)
    for solver in ("direct", "blocked"):
        evolver = rose(60, 0.2, solver=solver, ridge=1e-4)
        state, _ = run(evolver, (prototypes, moves, projector), z_old, z_new)
        np.testing.assert_allclose(evolver.map(state)[:3], projector[:3], atol=1e-3)  # rows of dead channels
        assert state.counts.ill_posed_steps >= 200 - 60 - 64  # known per block, so up to a block late


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_padding_changes_nothing(solver):
    rng = np.random.default_rng(6)
    prototypes, moves, projector, z_old, z_new, _ = features(rng, 110)
    evolver = rose(50, 0.2, 1, solver, 1e-4, 16)
    state, scores = run(evolver, (prototypes, moves, projector), z_old, z_new)
    where = np.sort(rng.permutation(160)[:110])
    padded_old, padded_new = np.full((2, 160, 24), np.nan, np.float32)
    padded_old[where], padded_new[where] = z_old, z_new
    valid = np.isin(np.arange(160), where)
    padded_state, padded_scores = run(evolver, (prototypes, moves, projector), padded_old, padded_new, valid)
    np.testing.assert_allclose(padded_scores[where], scores, atol=2e-5)
    np.testing.assert_array_equal(pseudo_of(padded_state), pseudo_of(state))
    assert padded_state.counts.images == 110
    assert padded_state.counts.bad_rows == 0


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_how_the_stream_is_cut_changes_nothing(solver):
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(7), 150)
    evolver = rose(50, 0.2, 1, solver, 1e-4, 16)
    whole, scores = run(evolver, (prototypes, moves, projector), z_old, z_new)
    state, pieces, step = start(evolver, prototypes, moves, projector), [], jax.jit(evolver.step)
    borders = [0, 1, 2, 2, 40, 105, 150]
    for first, last in zip(borders, borders[1:], strict=False):
        rows = slice(first, last)
        state, piece = step(state, z_old[rows], z_new[rows], np.ones(last - first, bool))
        pieces.append(piece)
    np.testing.assert_allclose(np.concatenate(pieces), scores, atol=2e-5)
    np.testing.assert_allclose(evolver.prototypes(state), evolver.prototypes(whole), atol=1e-4)


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_bad_rows_stay_out_of_the_queue(solver):
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(8), 80)
    evolver = rose(50, 0.2, 1, solver, 1e-4, 16)
    spoiled_old, spoiled_new = z_old.copy(), z_new.copy()
    spoiled_old[5, 0], spoiled_new[33, 7], spoiled_new[34] = np.inf, np.nan, -np.inf
    good = ~np.isin(np.arange(80), [5, 33, 34])
    stage = prototypes, moves, projector
    state, scores = run(evolver, stage, spoiled_old, spoiled_new)
    expected_state, expected = run(evolver, stage, z_old[good], z_new[good])
    np.testing.assert_array_equal(predict(scores)[~good], -1)
    np.testing.assert_allclose(scores[good], expected, atol=2e-5)
    np.testing.assert_array_equal(pseudo_of(state), pseudo_of(expected_state))
    assert state.counts.bad_rows == 3


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_images_outside_the_budget_are_scored_but_not_queued(solver):
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(9), 90)
    evolver = rose(30, 0.2, 1, solver, 1e-4, 16)
    enters = np.arange(90) % 4 == 0
    z_old[~enters] = np.nan  # never computed
    pseudo = pseudo_of(start(evolver, prototypes, moves, projector))
    state, scores = run(evolver, (prototypes, moves, projector), z_old, z_new, enters=enters)
    expected, moved = evolve(pseudo, prototypes, moves, projector, z_old, z_new, 1e-4, enters=enters)
    np.testing.assert_allclose(scores, expected, atol=3e-5)
    np.testing.assert_allclose(evolver.prototypes(state), moved, atol=2e-4)
    assert state.counts.bad_rows == 0


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_a_larger_table_changes_nothing(solver):
    """One executable serves every stage: the table has its final size, unseen rows score -inf."""
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(10), 60)
    evolver = rose(50, 0.2, 1, solver, 1e-4, 16)
    _, scores = run(evolver, (prototypes, moves, projector), z_old, z_new)
    table, wide_moves = np.zeros((30, 24), np.float32), np.zeros(30, bool)
    table[:12], wide_moves[:12] = prototypes, moves
    state = start(evolver, table, wide_moves, projector, seen=np.arange(30) < 12)
    state, wide = jax.jit(evolver.step)(state, z_old, z_new, np.ones(60, bool), None)
    np.testing.assert_allclose(wide[:, :12], scores, atol=2e-6)
    assert np.isneginf(wide[:, 12:]).all()


@pytest.mark.parametrize(("granularity", "outlier"), [(1, 1e12), (1, 1e25), (50, 1e12), (50, 1e25)])
def test_an_outlier_leaves_no_trace_once_it_has_left(granularity, outlier):
    """1e25 overflows G: updates are kept back while it is queued. 1e12 would leave rounding far above G."""
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(11), 400)
    z_old[3] *= outlier
    evolver = rose(100, 0.2, granularity, "blocked", 1e-4, 16)
    state = start(evolver, prototypes, moves, projector)
    step = jax.jit(evolver.step)
    for first in range(0, 400, 50):
        rows = slice(first, first + 50)
        previous = evolver.prototypes(state)
        state, scores = step(state, z_old[rows], z_new[rows], np.ones(50, bool), None)
        if first == 0 and outlier == 1e25:
            assert state.counts.broken_steps >= (1 if granularity == 50 else 47)
            if granularity == 50:
                np.testing.assert_array_equal(evolver.prototypes(state), previous)
    queue_old, queue_new = z_old[300:].astype(np.float64), z_new[300:].astype(np.float64)
    lam = float(state.lam)
    drift_map = np.linalg.solve(
        queue_old.T @ queue_old + lam * np.eye(24), queue_old.T @ queue_new + lam * projector
    )
    np.testing.assert_allclose(evolver.prototypes(state)[moves], prototypes[moves] @ drift_map, atol=2e-4)
    assert state.counts.bad_rows == 0


def test_sums_do_not_drift():
    prototypes, moves, projector, z_old, z_new, _ = features(np.random.default_rng(12), 3000)
    gram = z_old[-50:].T.astype(np.float64) @ z_old[-50:]
    for rebuild_every, bound in ((100, 1e-6), (10**9, 1e-5)):
        evolver = blocked(50, 0.2, block=16, rebuild_every=rebuild_every)
        state, _ = run(evolver, (prototypes, moves, projector), z_old, z_new)
        assert np.abs(state.sums[:, :24] - gram).max() <= bound * np.abs(gram).max()


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


@pytest.mark.parametrize("size", [1, 5, 16, 45])
def test_ldl_has_leading_factors(size):
    rng = np.random.default_rng(13)
    u = rng.normal(size=(size, 60)) / 20
    matrix = np.diag(np.where(np.arange(size) % 2, -1.0, 1.0)) + u @ u.T
    lower, pivots = (np.asarray(x, np.float64) for x in ldl(jnp.asarray(matrix, jnp.float32)))
    np.testing.assert_allclose((lower * pivots) @ lower.T, matrix, atol=1e-6)
    np.testing.assert_array_equal(np.triu(lower, 1), 0)
    half = max(1, size // 2)
    expected = np.linalg.slogdet(matrix[:half, :half])
    np.testing.assert_allclose(np.log(np.abs(pivots[:half])).sum(), expected[1], atol=1e-5)
