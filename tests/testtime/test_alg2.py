"""A whole test stage, Alg. 2 of the supplement, against a float64 NumPy loop that follows it line by line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import FakeStage, make_parts

from rose_jax.config import Config
from rose_jax.evolution import queue as ring
from rose_jax.methods import METHODS
from rose_jax.run.scoring import Scorer
from rose_jax.types import ClassMemory, Snapshot

C, D, N, S = 7, 6, 150, 40  # the stream turns the queue over several times
SIZES = (3, 2, 2)


def made_up(stage, seed=0) -> FakeStage:
    """Stage t with made-up features; the stream's length is no multiple of any batch."""
    rng = np.random.default_rng(100 * seed + stage)
    features = {
        k: np.maximum(rng.normal(size=(N + stage, D)) + 0.3, 0.01).astype(np.float32) for k in range(stage + 1)
    }
    return FakeStage(stage, snapshots=[made_up_snapshot(k) for k in range(stage + 1)], test=features)


def made_up_snapshot(k):
    rng = np.random.default_rng(1000 + k)
    first = sum(SIZES[:k])
    origin = np.full(C, -1, np.int32)
    origin[first : first + SIZES[k]] = k
    mean = np.where(origin[:, None] >= 0, rng.normal(size=(C, D)) + 1, 0).astype(np.float32)
    projector = (np.eye(D) + 0.1 * rng.normal(size=(D, D))).astype(np.float32)
    return Snapshot({}, {}, projector, ClassMemory(mean, origin), {})


def make_scorer(row, config, layout, folder=None) -> Scorer:
    config.scenario.task_sizes = SIZES
    return Scorer(row, METHODS[row], make_parts(config, None, C, (1, 1, 3)), layout, folder)


def cosine_label(z, prototypes, classes):
    scores = [z @ prototypes[c] / np.linalg.norm(z) / np.linalg.norm(prototypes[c]) for c in classes]
    return classes[int(np.argmax(scores))]


def alg2(view, old_prototypes, pseudo):
    """Lines 9 to 22; `old_prototypes` {c: p_c^{t-1}}, `pseudo` the features of line 12."""
    snapshot = view.snapshots[view.stage]
    projector = np.asarray(snapshot.projector, float)
    new = {c: snapshot.memory.mean[c].astype(float) for c in np.flatnonzero(snapshot.memory.origin >= 0)}
    q_old = list(pseudo)
    q_new = [z @ projector for z in pseudo]
    results, moved = [], {}
    for z_old, z_new in zip(view.test[view.stage - 1], view.test[view.stage], strict=True):
        q_old = [*q_old[1:], z_old.astype(float)]
        q_new = [*q_new[1:], z_new.astype(float)]
        a, b = np.array(q_old), np.array(q_new)
        w = np.linalg.inv(a.T @ a) @ a.T @ b  # Eq. 12
        moved = {c: p @ w for c, p in old_prototypes.items()}  # Eq. 9, always from the unmoved ones
        table = moved | new
        results.append(cosine_label(z_new.astype(float), table, sorted(table)))
    return results, moved | new


@pytest.fixture
def pseudo_log(monkeypatch):
    """What line 12 drew at each stage: the one random thing of a test stage."""
    drawn = []
    original = ring.pseudo_features

    def spy(*args):
        features = original(*args)
        jax.debug.callback(lambda z: drawn.append(np.asarray(z, float)), features)
        return features

    monkeypatch.setattr(ring, "pseudo_features", spy)
    return drawn


@pytest.mark.parametrize("solver", ["direct", "blocked"])
def test_stage_by_stage(solver, pseudo_log, one_device):
    config = Config()
    config.evolution.capacity, config.evolution.solver, config.evolution.ridge = S, solver, 0.0
    config.test.batch_size, config.test.batches_per_call = 16, 2
    scorer = make_scorer("rose", config, one_device)
    table = None
    for stage in range(3):
        view = made_up(stage)
        outcome = scorer.score(view)
        jax.effects_barrier()
        if stage == 0:
            memory = view.snapshots[0].memory
            table = {c: memory.mean[c].astype(float) for c in range(SIZES[0])}
            expected = [cosine_label(z.astype(float), table, sorted(table)) for z in view.test[0]]
        else:
            expected, table = alg2(view, table, pseudo_log[-1])
        assert np.mean(outcome.predictions == expected) >= 0.99
        for c, prototype in table.items():
            np.testing.assert_allclose(outcome.memory.mean[c], prototype, rtol=2e-3, atol=2e-3)
        assert (outcome.memory.origin[list(table)] >= 0).all()
        assert outcome.memory.origin.tolist().count(-1) == C - len(table)


def test_pseudo_features_are_old_prototypes_with_noise():
    prototypes = jnp.asarray(np.random.default_rng(0).normal(size=(C, D)) * 50, jnp.float32)
    moves = jnp.asarray([True, False, True, False, False, False, True])
    queue = ring.fill(jax.random.key(0), prototypes, moves, 2 * jnp.eye(D), 3000, 0.2)
    nearest = np.argmin(np.linalg.norm(queue.old[:, None] - prototypes[None], axis=2), axis=1)
    assert set(nearest) == {0, 2, 6}
    assert (np.bincount(nearest)[[0, 2, 6]] > 850).all()
    noise = queue.old - prototypes[nearest]
    assert np.std(noise) == pytest.approx(0.2, rel=0.03)
    np.testing.assert_allclose(queue.new, 2 * queue.old, rtol=1e-5)


@pytest.mark.parametrize("row", ["base", "projector", "gd", "rose"])
def test_batching_of_the_stream_changes_nothing(row, one_device):
    def predictions(batch_size, batches):
        config = Config()
        config.evolution.capacity = S
        config.test.batch_size, config.test.batches_per_call = batch_size, batches
        scorer = make_scorer(row, config, one_device)
        return [scorer.score(made_up(stage)).predictions for stage in range(2)][-1]

    np.testing.assert_array_equal(predictions(8, 4), predictions(151, 1))


def test_projector_row_moves_once_and_base_never(one_device):
    config = Config()
    for row in ("base", "projector"):
        scorer = make_scorer(row, config, one_device)
        first, second = scorer.score(made_up(0)), scorer.score(made_up(1))
        old = first.memory.mean[:3]
        expected = old @ made_up(1).snapshots[1].projector if row == "projector" else old
        np.testing.assert_allclose(second.memory.mean[:3], expected, rtol=1e-5)
        np.testing.assert_array_equal(second.memory.mean[3:5], made_up(1).snapshots[1].memory.mean[3:5])


def test_an_outcome_is_read_back_as_it_was_written(tmp_path, one_device):
    config = Config()
    config.evolution.capacity = S
    first = make_scorer("rose", config, one_device, tmp_path)
    written = [first.score(made_up(stage)) for stage in range(2)]
    second = make_scorer("rose", config, one_device, tmp_path)

    for stage in range(2):
        read = second.score(FakeStage(stage))  # what is on disk is not streamed again: there is no feature here
        np.testing.assert_array_equal(read.predictions, written[stage].predictions)
        np.testing.assert_array_equal(read.memory.mean, written[stage].memory.mean)
        assert read.counts == written[stage].counts
