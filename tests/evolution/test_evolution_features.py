"""The library face: whole streams, calls of any size, bad input, checkpoints."""

import io
import logging
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evolution_reference import alg2, features
from jax.errors import JaxRuntimeError

from rose_jax import Evolution, evolve_features
from rose_jax.errors import UserError
from rose_jax.evolution.core import ill_posed, predict
from rose_jax.evolution.queue import pseudo_features
from rose_jax.evolve import features as features_lib

OPTIONS = {"capacity": 70, "alpha": 0.2, "seed": 5, "ridge": 1e-4}


def small_stage(seed, n):
    prototypes, moves, projector, z_old, z_new, labels = features(np.random.default_rng(seed), n)
    pseudo = pseudo_features(jax.random.key(5), prototypes, moves, 70, 0.2)
    return (z_old, z_new, prototypes[moves], prototypes[~moves], projector), moves, np.asarray(pseudo), labels


def test_equals_float64_alg2():
    (z_old, z_new, old, new, projector), moves, pseudo, _ = small_stage(40, 190)
    result = evolve_features(z_old, z_new, old, new, projector, **OPTIONS)
    scores, moved = alg2(pseudo, np.concatenate([old, new]), moves, projector, z_old, z_new, 1e-4)
    np.testing.assert_array_equal(result.predictions, scores.argmax(1))
    np.testing.assert_allclose(result.prototypes, moved, atol=2e-4)
    assert result.counts == {"images": 190, "bad_rows": 0, "broken_steps": 0, "ill_posed_steps": 0}
    assert result.notes == ()


def test_evolve_every_reads_only_every_kth_old_feature():
    (z_old, z_new, old, new, projector), moves, pseudo, _ = small_stage(41, 190)
    enters = np.arange(190) % 3 == 0
    z_old[~enters] = np.nan
    result = evolve_features(z_old, z_new, old, new, projector, **OPTIONS, evolve_every=3)
    table = np.concatenate([old, new])
    scores, _ = alg2(pseudo, table, moves, projector, z_old, z_new, 1e-4, enters=enters)
    np.testing.assert_array_equal(result.predictions, scores.argmax(1))
    assert result.counts["bad_rows"] == 0


def test_other_types_identity_projector_and_bad_rows():
    (z_old, z_new, old, new, _), *_ = small_stage(42, 100)
    identity = np.eye(24)
    expected = evolve_features(z_old, z_new, old, new, identity, **OPTIONS)
    wide = [x.astype(np.float64) for x in (z_old, z_new, old, new)]
    found = evolve_features(*wide, **OPTIONS)
    np.testing.assert_array_equal(found.predictions, expected.predictions)
    on_device = evolve_features(*(jnp.asarray(x) for x in (z_old, z_new, old, new)), **OPTIONS)
    np.testing.assert_array_equal(on_device.predictions, expected.predictions)
    wide[1][17, 3] = 1e300  # finite in float64, not in float32
    spoiled = evolve_features(*wide, **OPTIONS)
    assert spoiled.predictions[17] == -1
    assert (np.delete(spoiled.predictions, 17) >= 0).all()
    assert spoiled.counts["bad_rows"] == 1


def test_calls_of_any_size_and_a_checkpoint_between_them(monkeypatch):
    (z_old, z_new, old, new, projector), *_ = small_stage(43, 128)
    expected = evolve_features(z_old, z_new, old, new, projector, **OPTIONS)
    evolution = Evolution(**OPTIONS)
    state, labels = evolution.init(old, new, projector), []
    traced = []
    monkeypatch.setattr(features_lib, "predict", lambda scores: traced.append(1) or predict(scores))
    for first in range(0, 128, 32):
        state, found = evolution.step(state, z_old[first : first + 32], z_new[first : first + 32])
        labels.append(found)
        leaves, structure = jax.tree.flatten(state)
        file = io.BytesIO()
        np.savez(file, *leaves)
        file.seek(0)
        with np.load(file) as saved:
            state = jax.tree.unflatten(structure, [jnp.asarray(saved[name]) for name in saved.files])
    assert len(traced) == 1, "one program for calls of one size"
    np.testing.assert_array_equal(np.concatenate(labels), expected.predictions)
    np.testing.assert_allclose(evolution.prototypes(state), expected.prototypes, atol=1e-4)
    np.testing.assert_allclose(old @ evolution.drift_map(state), expected.prototypes[:8], atol=2e-4)


def test_empty_streams():
    (_, _, old, new, projector), *_ = small_stage(44, 1)
    result = evolve_features(np.zeros((0, 24)), np.zeros((0, 24)), old, new, projector, **OPTIONS)
    assert result.predictions.shape == (0,)
    np.testing.assert_allclose(result.prototypes, np.concatenate([old @ projector, new]), atol=1e-5)


GOOD = {"z_old": (6, 4), "z_new": (6, 4), "old_prototypes": (3, 4), "new_prototypes": (2, 4), "projector": (4, 4)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("z_old", np.ones((6, 5)), r"z_old has shape \(6, 5\), expected \[n, d\] with d=4"),
        ("z_old", np.ones((5, 4)), r"z_old has shape \(5, 4\) and z_new \(6, 4\)"),
        ("z_new", np.ones(4), r"z_new has shape \(4,\), expected \[n, d\]"),
        ("old_prototypes", np.ones((0, 4)), r"old_prototypes is empty: shape \(0, 4\)"),
        ("old_prototypes", np.ones(4), r"old_prototypes has shape \(4,\), expected \[old classes, d\]"),
        ("old_prototypes", np.full((3, 4), np.nan), "old_prototypes holds NaN or Inf"),
        ("new_prototypes", np.ones((2, 3)), r"new_prototypes has shape \(2, 3\).*d=4"),
        ("new_prototypes", [[1, 2], [3]], "new_prototypes is not an array"),
        ("projector", np.ones((5, 4)), r"projector has shape \(5, 4\), expected \[d, d\] = \(4, 4\)"),
        ("projector", np.full((4, 4), "a"), r"projector holds <U1, expected real numbers"),
        ("capacity", 0, "capacity must be at least 1, not 0"),
        ("capacity", 1.5, "capacity must be a whole number, not 1.5"),
        ("capacity", 2**62, "capacity must be at most 4294967295, not 4611686018427387904"),
        ("seed", "0", "seed must be a whole number, not '0'"),
        ("seed", -1, "seed must be at least 0, not -1"),
        ("seed", 2**70, "seed must be at most 4294967295"),
        ("granularity", 0, "granularity must be at least 1"),
        ("evolve_every", 0, "evolve_every must be at least 1"),
        ("alpha", -0.1, "alpha must be"),
        ("alpha", None, "alpha must be a finite number and not negative, not None"),
        ("alpha", float("nan"), "alpha must be a finite number and not negative, not nan"),
        ("alpha", 1e39, r"alpha must be a finite number and not negative, not 1e\+39"),
        ("ridge", -1.0, "ridge must be a finite number"),
        ("ridge", float("nan"), "ridge must be a finite number and not negative, not nan"),
        ("solver", "blokced", "Unknown solver 'blokced'. Did you mean 'blocked'"),
    ],
)
def test_bad_input_is_named(name, value, message):
    arguments = {key: np.ones(shape) for key, shape in GOOD.items()} | {name: value}
    with pytest.raises(UserError, match=message):
        evolve_features(**arguments)


def test_a_queue_that_does_not_fit(monkeypatch):
    def exhausted(*_):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 320000000000000 bytes.")

    monkeypatch.setattr("rose_jax.evolve.features._init", exhausted)
    arguments = {key: np.ones(shape) for key, shape in GOOD.items()}
    words = r"A queue of 9000000 pairs of 4 numbers does not fit in memory \(RES.* bytes.\). Lower capacity.$"
    with pytest.raises(UserError, match=words):
        evolve_features(**arguments, capacity=9_000_000)


def test_a_mask_may_be_a_list_and_must_fit(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "rose_jax.evolve.features._step", lambda options, state, old, new, valid: seen.append(valid)
    )
    state, z = SimpleNamespace(memory=SimpleNamespace(mean=np.ones((5, 4)))), np.ones((6, 4))
    for valid, found in (([True] * 3, r"\(3,\) and type bool"), ([1] * 6, r"\(6,\) and type int")):
        with pytest.raises(UserError, match=rf"valid has shape {found}\d*, expected bool \[n\] = \(6,\)"):
            Evolution().step(state, z, z, valid)
    Evolution().step(state, z, z, [True, False] * 3)
    np.testing.assert_array_equal(seen, [[True, False] * 3])


def test_what_overflows_is_counted():
    """With a ridge of inf all is finite, and every image leaves the map where it was."""
    inf, pivots = np.float32(np.inf), np.array([4.0, 9.0], np.float32)
    assert not ill_posed(pivots, np.float32(0.01))
    assert ill_posed(pivots, np.float32(0.05))
    assert ill_posed(np.full(2, inf), inf)
    assert ill_posed(np.full(2, np.nan, np.float32), np.float32(0.01))


def test_noise_larger_than_the_prototypes_warns():
    evolution = Evolution(capacity=8, alpha=0.51)
    with pytest.warns(UserWarning, match=r"alpha=0.51 is too large: noise of norm 1.02"):
        evolution.init(np.full((3, 4), 0.5), np.ones((2, 4)))


def test_a_short_queue_is_said_in_log_and_results(caplog):
    arguments = {key: np.ones(shape) for key, shape in GOOD.items()} | {"z_old": np.ones((0, 4))}
    arguments["z_new"] = arguments["z_old"]
    with caplog.at_level(logging.WARNING):
        result = evolve_features(**arguments, capacity=5)
    assert "queue capacity 5 < 1.5 x dimension 4" in caplog.text
    assert result.notes
    assert "ridge raised" in result.notes[0]


def test_a_stream_shorter_than_the_queue_is_said(caplog):
    (z_old, z_new, old, new, projector), *_ = small_stage(44, 69)
    with caplog.at_level(logging.WARNING):
        result = evolve_features(z_old, z_new, old, new, projector, **OPTIONS)
    assert result.notes == (
        "of 70 pairs in the queue 1 are still made up after 69 images: a smaller capacity is rid of them sooner",
    )
    assert result.notes[0] in caplog.text
    # 190 images bring 95 pairs where every second one enters, and 64 where every third one does.
    stream = small_stage(45, 190)[0]
    assert evolve_features(*stream, **OPTIONS, evolve_every=2).notes == ()
    assert "6 are still made up" in evolve_features(*stream, **OPTIONS, evolve_every=3).notes[0]
