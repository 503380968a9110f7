"""Every study on a tiny run: what it writes, and the invariants that its protocol promises."""

import itertools
import json

import jax
import numpy as np
import pytest

from rose_jax import evolution
from rose_jax.run.scoring import Outcome
from rose_jax.study import STUDIES, adaptation, cost, distinct, eliminate, samples, unbalanced
from rose_jax.types import ClassMemory, Start, StreamBatch


@pytest.fixture
def bench(subject):
    return subject.bench()


def record(workdir, name):
    return json.loads((workdir / "studies" / f"{name}.json").read_text())


def test_all_studies_write_their_files(studied):
    workdir, code = studied
    assert code == 0
    assert {path.stem for path in (workdir / "studies").glob("*.json")} == set(STUDIES)
    for name in STUDIES:
        saved = record(workdir, name)
        assert set(saved) >= {
            "schema",
            "study",
            "paper",
            "says",
            "inputs",
            "seed",
            "options",
            "numbers",
            "seconds",
        }
        assert saved["says"].endswith(".")
        assert "nan" not in saved["says"]
        assert (workdir / "studies" / f"{name}.csv").read_text().count("\n") == len(saved["table"]["rows"]) + 1
        assert (workdir / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in workdir.rglob(".*.*") if path.name != ".lock"]  # no temporary files are left
    assert record(workdir, "samples")["inputs"]["encoders"]["base"]


def test_the_report_has_a_section_for_each(studied):
    workdir, _ = studied
    page, markdown = (workdir / "report.html").read_text(), (workdir / "report.md").read_text()
    for name in STUDIES:
        assert f"Study {name}: {STUDIES[name].title}" in page
        assert f"figures/{name}.png" in markdown
    assert markdown.count("![") == len(STUDIES) + 8  # and the report's own figures


@pytest.mark.parametrize("method", ["base", "projector", "gd", "rose"])
def test_without_variation_a_pass_is_the_run(finished, bench, method):
    """The same accuracies and predictions after every stage, the same prototypes.

    Those to rounding: an image's features end in other bits in another place of an encoder's batch.
    """
    workdir, results = finished
    done = bench.follow(method)
    assert bench.per_stage(done) == results["scores"][method]["per_stage"]
    for stage, outcome in enumerate(done.outcomes):
        (path,) = (workdir / "scores").glob(f"{method}_????????_*_stage_{stage:03d}.npz")
        with np.load(path) as saved:
            np.testing.assert_allclose(outcome.memory.mean, saved["mean"], rtol=1e-4, atol=1e-3)
            np.testing.assert_array_equal(outcome.predictions, saved["predictions"])


def test_samples_ends_at_the_run(studied, finished):
    last = record(studied[0], "samples")["numbers"]["last"]
    for method in ("base", "rose"):
        assert last[method][-1][0] == finished[1]["scores"][method]["last"]
    assert [len(draws) for draws in last["rose"]] == [2, 2, 2]


def test_samples_are_nested_and_as_many_of_each_class(bench):
    small, large = (samples.first(bench, size, 1) for size in (2, 5))
    assert not (small & ~large).any()
    np.testing.assert_array_equal(np.bincount(bench.labels[large]), 5)
    assert (small != samples.first(bench, 2, 0)).any()


def test_sweeps_pass_through_the_run(studied, finished):
    """Where an option has the run's own value, draw 0 is the run."""
    for name, option in (("capacity", 64), ("alpha", 0.2), ("granularity", 1)):
        numbers = record(studied[0], name)["numbers"]
        assert numbers["rose"]["last"][numbers["values"].index(option)][0] == finished[1]["scores"]["rose"]["last"]


def test_no_label_reaches_a_stream(bench, monkeypatch):
    streams = bench.streams(samples.first(bench, 5, 1), 1)
    before = bench.go(bench.scorer("rose"), streams, 1)
    shuffled = np.random.default_rng(0).permutation(bench.labels)
    monkeypatch.setattr(bench, "labels", shuffled)
    monkeypatch.setitem(bench.images.labels, "test", shuffled)
    after = bench.go(bench.scorer("rose"), streams, 1)
    for one, two in zip(before.outcomes, after.outcomes, strict=True):
        np.testing.assert_array_equal(one.predictions, two.predictions)
        np.testing.assert_array_equal(one.memory.mean, two.memory.mean)


def test_unbalanced_never_queues_the_other_half(bench, monkeypatch):
    """Other features for the classes that are not streamed: not one prototype notices."""
    chosen = unbalanced.select(bench, 0)
    assert chosen.sum() == 5
    streamed = chosen[bench.labels]
    before = bench.follow("rose", keep=streamed)
    for k in range(bench.stages):
        bench.bank.test(k, bench.own_streams[-1])
        features = bench.bank._loaded[k, "test"]
        noise = np.random.default_rng(k).normal(size=features.values.shape).astype(np.float32)
        rows = bench.bank._place[np.flatnonzero(~streamed)]
        replaced = features.values.copy()
        replaced[rows] = noise[rows]
        monkeypatch.setitem(bench.bank._loaded, (k, "test"), features._replace(values=replaced))
    after = bench.follow("rose", keep=streamed)
    for one, two in zip(before.outcomes, after.outcomes, strict=True):
        np.testing.assert_array_equal(one.memory.mean, two.memory.mean)


def test_unbalanced_scores_the_others_with_the_final_prototypes(bench):
    chosen = unbalanced.select(bench, 0)
    seen, others = unbalanced.accuracies(bench, chosen)
    assert np.isnan(seen[~chosen]).all()
    assert np.isnan(others[chosen]).all()
    means = np.asarray(bench.follow("rose", keep=chosen[bench.labels]).last.memory.mean, np.float64)
    rest = np.flatnonzero(~chosen[bench.labels])
    z = bench.bank.test(bench.stages - 1, rest).values.astype(np.float64)
    cosines = (z @ means.T) / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(means, axis=1)[None, :]
    hits = cosines.argmax(1) == bench.labels[rest]
    expected = [100 * hits[bench.labels[rest] == label].mean() for label in np.flatnonzero(~chosen)]
    np.testing.assert_allclose(others[~chosen], expected, atol=100 / 30)  # a tie may fall the other way


def test_distinct_deals_evenly_and_ends_alike(bench):
    hands = distinct.deal(bench, 1)
    counts = np.array([np.bincount(bench.labels[hands == s], minlength=10) for s in range(bench.stages)])
    np.testing.assert_array_equal(counts, (bench.images_per_class() // bench.stages)[None, :].repeat(3, axis=0))
    same = bench.streams([hands == bench.stages - 1] * bench.stages, 1)
    dealt = bench.streams([hands == s for s in range(bench.stages)], 1)
    np.testing.assert_array_equal(same[-1], dealt[-1])
    assert not set(dealt[0]) & set(dealt[-1])
    assert set(same[0]) < set(same[-1])


def test_eliminate_is_rose_while_there_is_one_old_encoder(bench):
    """The second stage has one: both are the same to the bit. Its prototypes are not carried."""
    plain, without = bench.follow("rose"), eliminate.follow(bench)
    for stage in (0, 1):
        np.testing.assert_array_equal(without.outcomes[stage].predictions, plain.outcomes[stage].predictions)
    original = bench.bank.snapshots[0].memory.mean[:4]
    np.testing.assert_array_equal(without.outcomes[1].memory.mean[:4], original)
    np.testing.assert_array_equal(without.outcomes[2].unmoved[:4], original)


def test_eliminate_against_separate_evolutions(bench):
    """Stage 2 by hand: an evolution 0 -> 2 and one 1 -> 2, each for its own classes, the best score wins."""
    stream = bench.own_streams[2][:100]
    view = eliminate.AllOldEncoders(bench.bank, 2, stream)
    wide = view.test_features(1)
    dim = bench.dim
    np.testing.assert_array_equal(wide[:, dim:], bench.bank.test(1, stream).values)
    snapshots = bench.bank.snapshots
    product = np.asarray(snapshots[1].projector, np.float64) @ np.asarray(snapshots[2].projector, np.float64)
    starts = eliminate.starts(view)
    np.testing.assert_allclose(starts[0], product, atol=1e-6)
    np.testing.assert_array_equal(starts[1], snapshots[2].projector)

    mean = np.where(np.arange(10)[:, None] < 4, snapshots[0].memory.mean, snapshots[1].memory.mean)
    mean = np.where(np.arange(10)[:, None] < 7, mean, snapshots[2].memory.mean)
    origin = np.repeat([0, 1, 2], (4, 3, 3))
    rose = evolution.rose(capacity=64, alpha=0.2, solver="direct")  # compiles faster
    key = jax.random.key(3)
    z_new, valid = bench.bank.test(2, stream).values, np.ones(100, bool)
    best = np.full((100, 10), -np.inf)
    for s, own in ((0, jax.random.fold_in(key, 0)), (1, key)):
        state = jax.jit(rose.init)(mean, origin == s, origin != 1 - s, starts[s], own)
        _, scores = jax.jit(rose.step)(state, wide[:, s * dim : (s + 1) * dim], z_new, valid)
        best = np.where((origin == s)[None, :] | (origin == 2)[None, :], scores, best)

    adaptation = eliminate.eliminating(rose, 2)
    start = Start(ClassMemory(mean, origin), np.int32(2), starts, {}, key)
    state = jax.jit(adaptation.init, static_argnums=1)(start, None)
    _, scores = jax.jit(adaptation.step, static_argnums=2)(state, StreamBatch(valid, valid, wide, z_new), None)
    np.testing.assert_allclose(scores, best, atol=2e-4)


def test_drift_agrees_with_the_run(studied, finished):
    cosines = record(studied[0], "drift")["numbers"]
    for method in ("projector", "gd", "rose"):
        assert cosines[method] == finished[1]["scores"][method]["drift_cosines"]
    assert {"gd_oracle", "gd_queue", "base+sdc", "base+adc", "base+ldc"} <= set(cosines)
    assert all(len(values) == 7 for values in cosines.values())


def test_the_ends_of_the_scale(studied, bench, subject):
    """The head's and the true means' accuracies, from the images on."""
    saved = record(studied[0], "oracle")["numbers"]
    last, features, images = bench.stages - 1, bench.trajectory.features, bench.images
    variables = bench.trajectory[last].variables
    stream, labels = bench.own_streams[last], bench.labels[bench.own_streams[last]]
    test, _ = features.encode(variables, "test", stream)
    means = []
    for label in range(bench.scenario.num_classes):
        rows = np.flatnonzero(images.labels["train"] == label)
        means.append(features.encode(variables, "train", rows)[0].astype(np.float64).mean(0))
    means = np.array(means)
    cosines = test @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    right = cosines.argmax(1) == labels
    by_class = [100 * right[labels == label].mean() for label in np.unique(labels)]
    np.testing.assert_allclose(saved["true_means_last"], np.mean(by_class), atol=1e-6)
    head = bench.trajectory[last].head["weight"]
    scores = test @ (head / np.linalg.norm(head, axis=1, keepdims=True)).T
    right = scores.argmax(1) == labels
    by_class = [100 * right[labels == label].mean() for label in np.unique(labels)]
    np.testing.assert_allclose(saved["head_per_stage"][-1], np.mean(by_class), atol=1e-6)


def test_adaptation_tells_the_runs_rows_and_how_their_streams_went(studied, finished):
    saved = record(studied[0], "adaptation")
    rows = {row[0]: row for row in saved["table"]["rows"]}
    assert set(rows) == {"projector", "batch_norm *", "tent", "rose"}
    assert "ttt" in saved["table"]["notes"][-1]  # and it says how to get them
    for method in ("projector", "rose"):
        assert saved["numbers"][method]["per_stage"] == finished[1]["scores"][method]["per_stage"]
    trace, pieces = saved["numbers"]["tent"]["trace"], saved["numbers"]["tent"]["pieces"]
    assert sum(trace["images"]) == pieces["images"][-1]
    assert len(trace["entropy"]) == len(trace["images"]) > 2
    assert rows["tent"][9:11] == ["1.0", "1.0"]
    assert rows["rose"][9:11] == ["2.0", "0.0"]


@pytest.mark.parametrize(
    ("name", "count", "shares"),
    [
        ("eata", "kept_images", ("25.0 %", "-")),  # of all images of all stages
        ("cotta", "augmented_batches", ("-", "75.0 %")),  # of all batches of all stages
        ("tent", "steps", ("-", "-")),
    ],
)
def test_adaptation_tells_what_was_kept_and_what_was_augmented(subject, bench, monkeypatch, name, count, shares):
    class Scripted:
        def score(self, view, encoders):
            stage, labels = view.stage, bench.labels[bench.own_streams[view.stage]]
            n, number = len(labels), np.arange(len(labels))
            predictions = np.where(number % 4 == 0, 9, np.where(number % 4 == 1, (labels + 1) % 4, labels))
            counts = {count: n / 4 if name == "eata" else 2 + stage}  # batches: 3 + 4 + 5, augmented: 2 + 3 + 4
            trace = {"images": np.full(3 + stage, 1), "entropy": np.linspace(2.0, 1.0, 3 + stage)}
            memory = ClassMemory(np.zeros((10, bench.dim)), np.zeros(10, np.int32))
            return Outcome(predictions.astype(np.int32), memory.mean, memory, {}, counts, 1.0, trace=trace)

        def passes_per_image(self, outcome, stage):
            return 3.0, 1.0

    monkeypatch.setattr(bench, "new_scorer", lambda *_: Scripted())
    told = adaptation.follow(subject, bench, name)
    cells = dict(zip(adaptation.HEADER, adaptation._cells(subject, name, told, None), strict=True))
    assert (cells["images kept"], cells["batches augmented"]) == shares
    assert cells["entropy, first to last batch"] == "2.00 to 1.00"
    assert (cells["forwards"], cells["backwards"]) == ("3.0", "1.0")
    # Along the last stage's stream: of old classes (0 to 6) every fourth image is taken for 9, which is new.
    stream, ends = bench.own_streams[-1], [0, *told.x]
    old = [[i for i in range(a, b) if bench.labels[stream[i]] < 7] for a, b in itertools.pairwise(ends)]
    np.testing.assert_allclose(told.to_new, [100 * np.mean([i % 4 == 0 for i in piece]) for piece in old])
    np.testing.assert_allclose(told.old, [100 * np.mean([i % 4 > 1 for i in piece]) for piece in old])
    assert cells["old taken for new"] == f"{100 * np.mean([i % 4 == 0 for piece in old for i in piece]):.2f}"


@pytest.mark.parametrize(
    ("batch", "images", "timed"), [(200, 10_000, 1000), (128, 10_000, 1024), (200, 500, 400), (200, 90, 90)]
)
def test_no_padding_is_timed(batch, images, timed, monkeypatch):
    monkeypatch.setattr(cost, "MOST_IMAGES", 1024)
    assert cost.whole_batches(batch, images) == timed


def test_time_has_methods_that_adapt_the_network(studied):
    rows = {row[0]: row for row in record(studied[0], "time")["table"]["rows"]}
    assert rows["tent"][4:6] == ["1", "1"]
    assert rows["none"][4:6] == ["1", "0"]
    assert "ttt" not in rows
