"""Rows that read images: `batch_norm` against a float64 oracle, on one device and eight; it and tent killed and resumed."""

import jax
import numpy as np
import pytest
import support

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax.methods import METHODS
from rose_jax.run.scoring import Scorer
from rose_jax.run.stage import Stage
from rose_jax.runtime import hosts
from rose_jax.runtime.sharding import Layout
from rose_jax.types import ClassMemory, Snapshot

BATCH = 12  # eight devices pad it to 16; the stream's tail is ragged
PER_CLASS = 13


def small_config():
    config = get_config()
    config.scenario.task_sizes = (5, 5)
    config.model.encoder, config.model.width = "tiny", 1
    config.data.images_per_class = PER_CLASS
    config.testtime.batch_size = BATCH
    return config


def snapshots(features):
    """Two encoders with statistics that are nothing like a batch's."""
    found = []
    for task in range(2):
        variables = features.parts.encoder.init(jax.random.key(task), np.zeros((8, 8, 3), np.float32))
        variables = variables | {"batch_stats": jax.tree.map(lambda x: x + 1.0, variables["batch_stats"])}
        rng = np.random.default_rng(task)
        origin = np.where(np.arange(10) // 5 == task, task, -1).astype(np.int32)
        mean = rng.normal(size=(10, 8)).astype(np.float32)
        found.append(Snapshot(variables, {}, np.eye(8, dtype=np.float32) * 2, ClassMemory(mean, origin), {}))
    return found


def streamed(devices, row="batch_norm"):
    features = experiment.make_features(small_config(), Layout(jax.devices()[:devices]))
    layout = features.images.layout
    left = [layout.replicate(snapshot) for snapshot in snapshots(features)]
    scorer = Scorer(row, METHODS[row], features.parts, layout, None)
    outcomes = []
    for stage in range(2):
        view = Stage(features, stage, left, features.images.stream(stage), 8)
        outcomes.append(scorer.score(view))
    return features, scorer, outcomes


@pytest.fixture(scope="module")
def alone():
    return streamed(1)


def test_predictions_use_the_statistics_of_the_batch(alone):
    """The network in float64 NumPy, batch by batch, ragged tail included."""
    features, _, outcomes = alone
    images = features.images.splits["test"].images
    for stage, outcome in enumerate(outcomes):
        left, stream = snapshots(features), features.images.stream(stage)
        prototypes = np.concatenate([left[0].memory.mean[:5] * 2**stage, left[1].memory.mean[5:]])[
            : 5 * (stage + 1)
        ]
        expected = []
        for start in range(0, len(stream), BATCH):
            pixels = np.asarray(images[stream[start : start + BATCH]], np.float64) / 255
            z = support.tiny_features(left[stage].variables["params"], (pixels - 0.3053) / 0.3761)
            scores = z @ prototypes.T / np.linalg.norm(prototypes, axis=1)
            expected.append(scores.argmax(1))
        expected = np.concatenate(expected)
        assert len(expected) == len(outcome.predictions) == PER_CLASS * 5 * (stage + 1)
        assert np.mean(expected == outcome.predictions) > 0.98
        assert len(set(expected.tolist())) > 2, "one class for all would prove nothing"


def test_prototypes_were_moved_by_the_compensation(alone):
    features, _, outcomes = alone
    np.testing.assert_allclose(outcomes[1].memory.mean[:5], 2 * snapshots(features)[0].memory.mean[:5], rtol=1e-6)


def test_eight_devices_predict_the_same(alone):
    _, _, outcomes = streamed(8)
    for one, many in zip(alone[2], outcomes, strict=True):
        assert np.mean(one.predictions == many.predictions) > 0.98
        np.testing.assert_array_equal(one.memory.mean, many.memory.mean)


def test_one_program_for_all_stages(alone):
    assert len(alone[1].programs) == 1


def test_it_differs_from_running_statistics(alone):
    _, _, plain = streamed(1, "projector")
    assert np.mean(plain[1].predictions == alone[2][1].predictions) < 0.9


def test_a_notice_is_answered_between_batches_and_a_rerun_gives_the_same(tmp_path, monkeypatch):
    config = small_config()
    config.methods = ("batch_norm", "tent")
    for schedule in (config.train.first, config.train.later):
        schedule.epochs, schedule.milestones = 1, ()
    layout = Layout(jax.devices()[:1])
    whole = experiment.run(config, tmp_path / "whole", layout=layout)
    calls = 0

    def asked(self):
        nonlocal calls
        stream = [frame for frame in support.callers() if frame == "run_stream"]
        calls += bool(stream)
        return calls == 9  # inside the first stage's stream of tent, after six batches of batch_norm's

    with monkeypatch.context() as patch:
        patch.setattr(hosts.Preemption, "asked", asked)
        with pytest.raises(hosts.Preempted):
            experiment.run(config, tmp_path / "stopped", layout=layout)
    assert [path.name[:10] for path in (tmp_path / "stopped" / "scores").glob("*.npz")] == ["batch_norm"]
    again = experiment.run(config, tmp_path / "stopped", layout=layout)
    for row in config.methods:
        for key in ("per_stage", "matrix", "confusion", "drift_cosines", "counts"):
            np.testing.assert_array_equal(again["scores"][row][key], whole["scores"][row][key])
    for path in (tmp_path / "whole" / "scores").glob("tent_*.npz"):
        same = tmp_path / "stopped" / "scores" / path.name
        with np.load(path) as one, np.load(same) as other:
            np.testing.assert_array_equal(one["predictions"], other["predictions"])
            np.testing.assert_array_equal(one["trace/entropy"], other["trace/entropy"])
