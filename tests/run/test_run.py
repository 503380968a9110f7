"""A run from images to results, on three tasks of digits: contract, resume, leaks."""

import json
import shutil

import jax
import numpy as np
import pytest
import tiny_run

from rose_jax import experiment
from rose_jax.data import sources
from rose_jax.runtime import hosts
from rose_jax.runtime.sharding import Layout

SCORE_KEYS = {"last", "average", "per_stage", "matrix", "old", "new", "forgetting", "ms_per_image", "drift_cosine"}


def test_results_keep_the_contract(finished):
    workdir, results = finished
    written = json.loads((workdir / "results.json").read_text())
    assert written["schema"] == 1
    assert set(written["scores"]) == {"base", "projector", "gd", "rose"}
    for score in written["scores"].values():
        assert set(score) >= SCORE_KEYS
        assert len(score["per_stage"]) == 3
        assert score["per_stage"][-1] == score["last"]
    setting = written["setting"]
    assert [len(classes) for classes in setting["task_classes"]] == [4, 3, 3]
    assert sum(setting["task_classes"], []) == setting["class_order"]
    assert written["train"]["seconds"] > 0
    for name in ("config.json", "metrics.jsonl", "report.html", "figures/curves.png"):
        assert (workdir / name).stat().st_size > 0
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines if line["step"] == line["steps"]] == [0, 1, 2]


def test_first_stage_is_the_same_for_every_row(finished):
    scores = finished[1]["scores"]
    assert len({score["per_stage"][0] for score in scores.values()}) == 1


def test_a_notice_is_answered_in_the_middle_of_a_stream(finished, tmp_path, monkeypatch):
    """And the stream that was under way starts over."""
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    shutil.rmtree(workdir / "scores")
    calls = 0

    def asked(self):
        nonlocal calls
        calls += 1
        return calls == 3  # after training, before the first batch, before the second

    with monkeypatch.context() as patch:
        patch.setattr(hosts.Preemption, "asked", asked)
        with pytest.raises(hosts.Preempted, match="starts over"):
            experiment.run(tiny_run.get_config(), workdir, layout=Layout(jax.devices()[:1]))
    assert not list((workdir / "scores").glob("*.npz")), "not at the end of a stream"
    again = experiment.run(tiny_run.get_config(), workdir, layout=Layout(jax.devices()[:1]))
    assert {k: v["per_stage"] for k, v in again["scores"].items()} == {
        k: v["per_stage"] for k, v in finished[1]["scores"].items()
    }


def test_long_things_may_be_interrupted(finished):
    calls = []
    with experiment.open_run(finished[0], layout=Layout(jax.devices()[:1])) as run:
        trajectory = run.trajectory("base")
        stream = np.arange(300)
        view = trajectory.view(2, stream, lambda: calls.append(1))
        for act in (
            lambda: view.test_features(2),
            lambda: view.train_features(1),
            lambda: list(view.train_batches(jax.random.key(0), 1)),
        ):
            calls.clear()
            act()
            assert len(calls) >= 2


def test_a_rerun_reads_everything_back(finished, tmp_path, monkeypatch):
    workdir, results = finished
    shutil.copytree(workdir, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    monkeypatch.setattr("rose_jax.run.trajectory.train_steps", None)  # calling it would fail
    experiment.run(tiny_run.get_config(), tmp_path / "run", layout=Layout(jax.devices()[:1]))
    again = json.loads((tmp_path / "run" / "results.json").read_text())
    for name, score in results["scores"].items():
        for key in ("per_stage", "matrix", "drift_cosine"):
            assert again["scores"][name][key] == score[key]


def test_a_run_continues_at_the_next_stage(finished, tmp_path, monkeypatch):
    """Stopped while the third task trains, it keeps two stages and ends with the same numbers."""
    _, results = finished
    real_after_call = experiment.Trajectory.after_call

    def after_call(self, task, *rest):
        act = real_after_call(self, task, *rest)

        def stop(state, done, window):
            if task == 2 and done == 2:
                raise KeyboardInterrupt
            act(state, done, window)

        return stop

    monkeypatch.setattr(experiment.Trajectory, "after_call", after_call)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(tiny_run.get_config(), tmp_path, layout=Layout(jax.devices()[:1]))
    monkeypatch.undo()
    trained = []
    monkeypatch.setattr(
        "rose_jax.run.trajectory.train_steps",
        lambda *args, real=experiment.Trajectory.train.__globals__["train_steps"], **kwargs: (
            trained.append(args[5]) or real(*args, **kwargs)
        ),
    )
    again = experiment.run(tiny_run.get_config(), tmp_path, layout=Layout(jax.devices()[:1]))
    assert trained == [2]
    for name, score in results["scores"].items():
        assert again["scores"][name]["per_stage"] == score["per_stage"]


def test_no_label_of_a_test_image_is_used(finished, tmp_path, monkeypatch):
    """The same test images under permuted labels get the same predictions.

    Labels are permuted within what each stage has seen, so that the streams hold the same images.
    """
    workdir, _ = finished
    load = sources.load

    def permuted(*args, **kwargs):
        dataset = load(*args, **kwargs)
        order = np.random.RandomState(1993).permutation(10)
        labels = np.array(dataset.test.labels)
        for classes in (order[:4], order[4:7], order[7:]):
            rows = np.flatnonzero(np.isin(labels, classes))
            labels[rows] = np.random.default_rng(0).permutation(labels[rows])
        assert (labels != dataset.test.labels).mean() > 0.5
        test = sources.ArraySplit(dataset.test.images, labels)
        return sources.Dataset(
            dataset.name, dataset.num_classes, dataset.class_names, dataset.image_size, dataset.train, test
        )

    monkeypatch.setattr(sources, "load", permuted)
    before = len(list((workdir / "scores").glob("*_stage_*.npz")))
    assert before == 4 * 3
    experiment.run(tiny_run.get_config(), tmp_path, layout=Layout(jax.devices()[:1]))
    for path in sorted((workdir / "scores").glob("*_stage_*.npz")):
        with np.load(path) as one, np.load(tmp_path / "scores" / path.name) as two:
            np.testing.assert_array_equal(one["predictions"], two["predictions"])
