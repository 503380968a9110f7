"""Whitened rows over stages, against a float64 NumPy loop; what they may not change; what they are invariant to."""

import jax
import metric_oracle as oracle
import numpy as np
import pytest
from metric_oracle import Blind, Row, View
from support import make_parts

from rose_jax import evolution
from rose_jax.config import Config
from rose_jax.data.order import generator
from rose_jax.evolution import queue as ring
from rose_jax.methods import resolve
from rose_jax.run.scoring import Scorer

S, BATCH, STAGES = 40, 16, 3


KEPT = {}


def make(name, layout, folder=None, **options):
    """A scorer at its first stage. Those that keep no files are kept themselves, with all that they compiled."""
    address = (name, layout, *sorted(options.items()))
    if folder is None and address in KEPT:
        KEPT[address].restart()
        return KEPT[address]
    config = Config()
    config.evolution.capacity, config.evolution.ridge = S, 0.0
    config.test.batch_size, config.test.batches_per_call = BATCH, 4
    for key, value in options.items():
        setattr(config.metric, key, value)
    config.scenario.task_sizes = (*oracle.SIZES, 1)
    scorer = Scorer(name, resolve([name])[name], make_parts(config, None, oracle.C, (1, 1, 3)), layout, folder)
    return scorer if folder else KEPT.setdefault(address, scorer)


@pytest.fixture
def pseudo_log(monkeypatch):
    """The pseudo-features that filled the queue at each stage."""
    drawn = []
    original = ring.pseudo_features

    def spy(*args):
        features = original(*args)
        jax.debug.callback(lambda z: drawn.append(np.asarray(z, float)), features)
        return features

    monkeypatch.setattr(ring, "pseudo_features", spy)
    monkeypatch.setattr("test_metric_rows.KEPT", {})  # what is compiled already has no spy
    return drawn


def agree(predictions, scores):
    """Where float64 sees two classes as good as tied, either will do."""
    chosen = scores[np.arange(len(scores)), predictions]
    best = scores.max(1)
    np.testing.assert_array_less(best - chosen, 2e-3 * np.maximum(np.abs(best), 1))
    assert np.mean(predictions == scores.argmax(1)) > 0.97


@pytest.mark.parametrize(
    "options",
    [
        dict(error="none"),
        dict(error="task"),
        dict(kind="lda", ridge=0.3),
        dict(source="newest"),
        dict(per_class_weight=0.2),
        dict(per_class_weight=0.2, kind="lda"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["base_whitened", "projector_whitened"])
def test_rows_that_do_not_evolve(name, options, one_device):
    if name == "base_whitened" and (len(options) > 1 or "error" not in options):
        pytest.skip("covered by the other row")
    scorer = make(name, one_device, **options)
    row = Row(scorer.parts.config.metric)
    for stage in range(STAGES):
        view = View(stage)
        outcome = scorer.score(view)
        w = view.snapshots[stage].projector.astype(float) if name[0] == "p" else np.eye(oracle.D)
        agree(outcome.predictions, oracle.still(row, view, w))
        np.testing.assert_allclose(outcome.params["covariance"], row.sigma, rtol=1e-3, atol=1e-4)
        assert outcome.params["classes"] == 3 + 2 * stage


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        (dict(error="none", refresh=0), 1),
        (dict(error="task", refresh=0, kind="lda"), 1),
        (dict(error="stream", refresh=4), 1),
        (dict(error="stream", refresh=32, kind="lda"), 1),
        (dict(error="stream", refresh=32, per_class_weight=0.2), BATCH),
    ],
    ids=str,
)
def test_rose_whitened(options, batch, pseudo_log, one_device):
    scorer = make("rose_whitened", one_device, **options)
    row = Row(scorer.parts.config.metric)
    for stage in range(STAGES):
        view = View(stage)
        outcome = scorer.score(view)
        jax.effects_barrier()
        if stage == 0:
            expected = oracle.still(row, view, np.eye(oracle.D))
        else:
            expected = oracle.evolving(row, view, pseudo_log[-1], min(options["refresh"], BATCH), batch)
        agree(outcome.predictions, expected)
        np.testing.assert_allclose(outcome.params["covariance"], row.sigma, rtol=5e-3, atol=5e-3)
        for c, prototype in row.table.items():
            np.testing.assert_allclose(outcome.memory.mean[c], prototype, rtol=2e-3, atol=2e-3)


def predictions(name, layout, view, **options):
    scorer = make(name, layout, **options)
    return [scorer.score(view(stage)).predictions for stage in range(STAGES)]


def test_predictions_do_not_depend_on_the_basis_of_feature_space(one_device):
    """f_t -> f_t A_t for any invertible A_t, as rho -> 0. The plain cosine depends on it."""
    rng = np.random.default_rng(5)
    bases = [np.eye(oracle.D) + 0.3 * rng.normal(size=(oracle.D, oracle.D)) for _ in range(STAGES)]
    same = lambda name, **options: np.mean(  # noqa: E731
        np.concatenate(predictions(name, one_device, View, **options))
        == np.concatenate(predictions(name, one_device, lambda stage: View(stage, bases=bases), **options))
    )
    assert same("projector_whitened", ridge=1e-6) > 0.995  # rounding at a tie
    assert same("projector_whitened", ridge=1e-6, kind="lda") > 0.995
    assert same("projector") < 0.95
    assert same("projector_whitened", ridge=3.0) < 0.98


@pytest.mark.parametrize("name", ["base", "projector", "rose", "gd"])
def test_other_rows_ask_for_nothing_and_keep_nothing(name, one_device):
    scorer = make(name, one_device)
    for stage in range(STAGES):
        assert scorer.score(Blind(stage)).params == {}


@pytest.mark.parametrize("name", ["rose", "gd"])
def test_other_rows_are_the_evolver_s_to_the_bit(name, one_device):
    view = Blind(1)
    scorer = make(name, one_device)
    first, second = scorer.score(Blind(0)), scorer.score(view)
    evolver = {
        "rose": evolution.rose(S, 0.2, ridge=0.0),
        "gd": evolution.gd(capacity=S, alpha=0.2),
    }[name]
    origin = view.snapshots[1].memory.origin
    mean = np.where((origin == 1)[:, None], view.snapshots[1].memory.mean, first.memory.mean)
    moves, seen = np.arange(oracle.C) < 3, np.arange(oracle.C) < 5
    key = jax.random.key(int(generator("stream", 0, 1, 1).integers(2**31)))
    state = jax.jit(evolver.init)(mean, moves, seen, view.snapshots[1].projector, jax.random.split(key)[1])
    stream = jax.jit(lambda state, batches: jax.lax.scan(lambda s, b: evolver.step(s, *b), state, batches))
    images, labels = len(second.predictions), []
    for start in range(0, images, 4 * BATCH):  # scans of four batches, as `make` asks for
        pairs = (
            np.resize(z[start : start + 4 * BATCH], (4, BATCH, oracle.D)) for z in (view.stream[0], view.stream[1])
        )
        valid = np.arange(start, start + 4 * BATCH).reshape(4, BATCH) < images
        state, scores = stream(state, (*pairs, valid, np.ones_like(valid)))
        labels.append(np.asarray(evolution.predict(scores.reshape(4 * BATCH, -1))))
    np.testing.assert_array_equal(second.predictions, np.concatenate(labels)[:images])
    np.testing.assert_array_equal(second.memory.mean, evolver.prototypes(state))


@pytest.mark.parametrize("name", ["rose_whitened", "gd_queue_whitened"])
def test_the_queue_s_own_metric(name, pseudo_log, one_device):
    """s_c = z G^-1 p_c / sqrt(p_c G^-1 p_c) over three stages, and not a look at D_t."""
    scorer, outcome = make(name, one_device, source="queue", queue_ridge=0.01), None
    for stage in range(STAGES):
        view, old = Blind(stage), outcome.memory.mean if outcome else None
        outcome = scorer.score(view)
        jax.effects_barrier()
        if not stage:
            np.testing.assert_array_equal(outcome.params["transform"], np.eye(oracle.D))
            continue
        w = view.snapshots[stage].projector.astype(float)
        new = list(pseudo_log[-1] @ w)
        lam = 0.01 / (outcome.memory.origin >= 0).sum() * np.square(new).sum() / oracle.D
        q_old, memory = list(pseudo_log[-1]), view.snapshots[stage].memory
        moves = outcome.memory.origin < stage
        scores = []
        for a, b in zip(view.stream[stage - 1].astype(float), view.stream[stage].astype(float), strict=True):
            q_old, new = [*q_old[1:], a], [*new[1:], b]
            inverse = np.linalg.inv(np.transpose(new) @ new + lam * np.eye(oracle.D))
            w = np.linalg.lstsq(np.array(q_old), np.array(new), rcond=None)[0]
            table = np.where(moves[:, None], old.astype(float) @ w, memory.mean)
            lengths = np.sqrt(np.maximum(np.einsum("cd,de,ce->c", table, inverse, table), 1e-30))
            scores.append(np.where(outcome.memory.origin >= 0, table @ inverse @ b / lengths, -np.inf))
        if name == "rose_whitened":  # gradient descent moves them elsewhere
            agree(outcome.predictions, np.array(scores))
        metric = outcome.params["transform"] @ outcome.params["transform"].T
        np.testing.assert_allclose(metric / metric.max(), inverse / metric.max(), atol=2e-4)


class OneImage(View):
    """Classes of a single image, of fewer than there are dimensions, and channels that are dead."""

    def __init__(self, stage):
        super().__init__(stage, images=1 if stage == 1 else 4)
        for array in (self.own, self.own_before, *self.stream.values()):
            array[:, :2] = 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rose_whitened", dict(ridge=0.0)),
        ("rose_whitened", dict(source="queue")),
        ("rose_whitened", dict(kind="lda", source="newest", shrinkage="ledoit_wolf", refresh=16)),
        ("projector_whitened", dict(ridge=0.0)),
        ("projector_whitened", dict(shrinkage="ledoit_wolf")),
    ],
    ids=str,
)
def test_degenerate_features_stay_finite(name, options, one_device):
    scorer = make(name, one_device, **options)
    for stage in range(STAGES):
        outcome = scorer.score(OneImage(stage))
        assert (outcome.predictions >= 0).all()
        assert all(np.isfinite(value).all() for value in outcome.params.values())


@pytest.mark.parametrize("name", ["gd_whitened", "gd_oracle_whitened"])
def test_further_rows_run(name, one_device):
    scorer = make(name, one_device)
    for stage in range(2):
        assert (scorer.score(View(stage)).predictions >= 0).all()


def test_unreadable_images_are_counted_not_classified(one_device):
    class Broken(View):
        def __init__(self, stage):
            super().__init__(stage)
            for z in self.stream.values():
                z[7] = np.nan

    for options in (dict(), dict(per_class_weight=0.1)):
        scorer = make("rose_whitened", one_device, **options)
        for stage in range(2):
            outcome = scorer.score(Broken(stage))
            assert np.flatnonzero(outcome.predictions < 0).tolist() == [7]
            assert np.isfinite(outcome.params["covariance"]).all()


def test_an_outcome_goes_on_from_its_file(tmp_path, one_device):
    whole = make("rose_whitened", one_device)
    expected = [whole.score(View(stage)) for stage in range(STAGES)]
    first = make("rose_whitened", one_device, tmp_path)
    for stage in range(2):
        first.score(View(stage))
    second = make("rose_whitened", one_device, tmp_path)
    for stage in range(STAGES):
        np.testing.assert_array_equal(second.score(View(stage)).predictions, expected[stage].predictions)
