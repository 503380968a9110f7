"""DPCR and rows with its classifier against float64 NumPy, the cases that break them, and what they may not touch."""

import dpcr_oracle as oracle
import jax
import numpy as np
import pytest
from dpcr_oracle import Oracle, View
from support import make_parts

from configs import cifar100_cold10, imagenet100_cold10, tiny_warm5
from rose_jax.compensation import COMPENSATIONS
from rose_jax.config import Config
from rose_jax.errors import UserError
from rose_jax.evolution import queue as ring
from rose_jax.methods import METHODS, Row, resolve
from rose_jax.run.identity import scoring_digest
from rose_jax.run.scoring import Scorer
from rose_jax.statistics.moments import least_squares, row_space

S, BATCH, STAGES = 40, 16, 3


def make(name, layout, folder=None, **options):
    config = Config()
    config.evolution.capacity, config.evolution.ridge = S, 0.0
    config.test.batch_size, config.test.batches_per_call = BATCH, 4
    for key, value in (dict(gamma=5.0) | options).items():
        setattr(config.dpcr, key, value)
    config.scenario.task_sizes = (*oracle.SIZES, 1)
    parts = make_parts(config, None, oracle.C, (1, 1, 3))
    return Scorer(name, resolve([name])[name], parts, layout, folder)


def agree(outcome, row, scores):
    chosen = scores[np.arange(len(scores)), outcome.predictions]
    np.testing.assert_array_less(scores.max(1) - chosen, 1e-3)  # where float64 sees a tie, either will do
    assert np.mean(outcome.predictions == scores.argmax(1)) > 0.97
    for c in row.mean:
        np.testing.assert_allclose(outcome.memory.mean[c], row.mean[c], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(outcome.params["moments"][c], row.moment[c], rtol=1e-3, atol=5e-3)
        np.testing.assert_allclose(outcome.params["weights"][c], row.weights[c], rtol=1e-3, atol=1e-3)
        assert outcome.params["counts"][c] == row.count[c]


# The map.


def test_the_map_is_least_squares():
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(2, 40, 5))
    for lam in (1e-9, 3.0):
        expected = np.linalg.inv(old.T @ old + lam * np.eye(5)) @ old.T @ new
        np.testing.assert_allclose(least_squares(old, new, lam), expected, rtol=1e-8)
    broken = np.concatenate([old, np.full((1, 5), np.nan)]), np.concatenate([new, new[:1]])
    np.testing.assert_allclose(least_squares(*broken, 3.0), expected, rtol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_directions_that_no_image_has_are_mapped_to_nothing(scale):
    rng = np.random.default_rng(1)
    old, new = scale * rng.normal(size=(2, 7, 12))  # fewer images than dimensions
    old[:, 3:5] = 0  # dead channels
    found = least_squares(old, new, 1e-9)
    np.testing.assert_allclose(found, np.linalg.pinv(old) @ new, atol=1e-6)
    np.testing.assert_allclose(found[3:5], 0, atol=1e-12)


def test_the_compensation_moves_old_classes_by_the_map():
    view, config = View(1), Config()
    row = Oracle(config.dpcr)
    memory = view.snapshots[0].memory
    origin = np.where(np.arange(oracle.C) == 3, 1, memory.origin)
    memory = memory._replace(mean=memory.mean + np.eye(oracle.C, oracle.D, -3, np.float32), origin=origin)
    move = COMPENSATIONS["dpcr"].make(make_parts(config, None, 100, (1, 1, 3))).move
    moved, drift_map = move(memory, view, jax.random.key(0))
    np.testing.assert_allclose(drift_map, row.map(view), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moved.mean[:3], memory.mean[:3] @ row.map(view), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(moved.mean[3:], memory.mean[3:])


def test_row_space():
    z = np.random.default_rng(2).normal(size=(3, 6))
    z[2] *= 1e-4
    moment = z.T @ z
    assert row_space(moment, 0.0)[1] > 3  # rounding, as in the code
    for threshold, rank in ((1e-12, 3), (1e-5, 2)):
        span, found = row_space(moment, threshold)
        assert found == rank
        np.testing.assert_allclose(span @ span, span, atol=1e-9)
        np.testing.assert_allclose(z[:2] @ span, z[:2], atol=1e-3)
    assert row_space(np.zeros((4, 4)), 0.0)[1] == 0


# Rows over stages.


@pytest.mark.parametrize(
    ("options", "per_class"),
    [(dict(), 11), (dict(sums="plain", gamma=0.3), 11), (dict(threshold=1e-3), 4), (dict(threshold=0.05), 11)],
    ids=str,
)
def test_dpcr(options, per_class, one_device):
    scorer = make("dpcr", one_device, **options)
    row = Oracle(scorer.parts.config.dpcr)
    for stage in range(STAGES):
        view = View(stage, per_class)
        row.begin(view)
        if stage:
            assert any(np.trace(span) < oracle.D - 0.5 for *_, span in row.old.values()) == (
                "threshold" in options
            )
            row.move(row.map(view))
        row.solve()
        agree(scorer.score(view), row, row.scores(view.test_features(stage)))


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
    return drawn


@pytest.mark.parametrize("options", [dict(refresh=8), dict(refresh=0), dict(refresh=32, threshold=0.05)], ids=str)
def test_ridge_with_the_evolved_map(options, pseudo_log, one_device):
    scorer = make("lwf+rose_ridge", one_device, **options)
    row = Oracle(scorer.parts.config.dpcr)
    for stage in range(STAGES):
        view = View(stage)
        outcome = scorer.score(view)
        jax.effects_barrier()
        row.begin(view)
        if stage == 0:
            row.solve()
            expected = row.scores(view.test_features(0))
        else:
            expected = row.evolve(view, pseudo_log[-1], min(options["refresh"], BATCH) or BATCH)
        agree(outcome, row, expected)


def test_prototypes_that_do_not_move_linearly_leave_the_moments(one_device):
    scorer = make("lwf_ncm_ridge", one_device, threshold=0.05)
    row = Oracle(scorer.parts.config.dpcr)
    for stage in range(STAGES):
        view = View(stage)
        row.begin(view)
        row.solve()
        agree(scorer.score(view), row, row.scores(view.test_features(stage)))


@pytest.mark.parametrize("name", ["projector_ridge", "gd_ridge", "dpcr_whitened"])
def test_further_rows_run(name, one_device):
    scorer = make(name, one_device)
    for stage in range(2):
        assert (scorer.score(View(stage)).predictions >= 0).all()


@pytest.mark.parametrize("name", ["dpcr", "lwf+rose_ridge"])
@pytest.mark.parametrize("options", [dict(), dict(gamma=1e-12), dict(threshold=1e-3)], ids=str)
def test_degenerate_features_stay_finite(name, options, one_device):
    """Dead channels, and classes of fewer images than dimensions, then of one image."""
    scorer, shapes = make(name, one_device, **options), []
    for stage in range(STAGES):
        outcome = scorer.score(View(stage, per_class=1 if stage == 1 else 3, dead=2))
        assert (outcome.predictions >= 0).all()
        assert np.isfinite(outcome.memory.mean).all()
        assert all(np.isfinite(value).all() for value in outcome.params.values())
        shapes.append({name: value.shape for name, value in outcome.params.items()})
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(scorer.programs) == (1 if name == "dpcr" else 2)  # the first stage has nothing to evolve


def test_unreadable_images_are_counted_not_classified(one_device):
    class Broken(View):
        def test_features(self, k, every=1):
            features = super().test_features(k)
            features[7], features[9, 0] = np.nan, np.inf
            return features[::every]

        def train_features(self, k):
            features, labels = super().train_features(k)
            features[0] = np.nan
            return features, labels

        def own_snapshot(self):
            return View.own_snapshot(View(self.stage))

    for name in ("dpcr", "lwf+rose_ridge"):
        scorer = make(name, one_device)
        for stage in range(2):
            outcome = scorer.score(Broken(stage))
            assert np.flatnonzero(outcome.predictions < 0).tolist() == [7, 9]
            assert all(np.isfinite(value).all() for value in outcome.params.values())
            assert outcome.params["counts"][0] == 10


def test_an_outcome_goes_on_from_its_file(tmp_path, one_device):
    for name in ("dpcr", "lwf+rose_ridge"):
        whole = make(name, one_device)
        expected = [whole.score(View(stage)) for stage in range(STAGES)]
        first = make(name, one_device, tmp_path)
        for stage in range(2):
            first.score(View(stage))
        second = make(name, one_device, tmp_path)
        for stage in range(STAGES):
            np.testing.assert_array_equal(second.score(View(stage)).predictions, expected[stage].predictions)


# Names, options, other rows.


def test_every_row_may_have_the_classifier():
    for name, row in resolve([f"{name}_ridge" for name in METHODS]).items():
        assert row == METHODS[name.removesuffix("_ridge")]._replace(classifier="ridge", origin="ours")
    assert resolve(["lwf+rose_ridge"])["lwf+rose_ridge"] == Row("lwf", "projector", "rose", "ridge", "ours")
    assert METHODS["dpcr"] == Row("lwf", "dpcr", "none", "ridge", "published")
    with pytest.raises(UserError, match="Did you mean 'ldc_ridge'"):
        resolve(["ldc_rigde"])


def test_options_name_the_outcomes_of_their_rows_alone():
    rows = resolve([*METHODS, "lwf+rose", "rose_whitened", "rose_ridge", "dpcr_whitened"])
    touched = {key: set() for key in ("lam", "gamma", "threshold", "sums", "refresh")}
    for key, names in touched.items():
        config = Config()
        value = getattr(config.dpcr, key)
        setattr(config.dpcr, key, "plain" if key == "sums" else value + 0.5)
        names |= {n for n, row in rows.items() if scoring_digest(config, row) != scoring_digest(Config(), row)}
    assert touched["lam"] == {"dpcr", "rose_ridge", "dpcr_whitened"}
    assert all(touched[key] == {"dpcr", "rose_ridge"} for key in touched if key != "lam")


def test_other_rows_ask_for_nothing(one_device):
    class Blind(View):
        def train_batches(self, key, epochs, transform=None):
            raise AssertionError("a row without this classifier must not look at these")

    for name in ("lwf_ncm", "lwf+rose", "lwf+rose_whitened"):
        scorer = make(name, one_device)
        for stage in range(2):
            scorer.score(Blind(stage))
        assert not (scorer.classifier.motion and scorer.classifier.motion.confine)


def test_gamma_is_the_authors():
    settings = {cifar100_cold10: 200, tiny_warm5: 2000, imagenet100_cold10: 2000}
    for setting, gamma in settings.items():
        assert setting.get_config().dpcr.gamma == gamma
