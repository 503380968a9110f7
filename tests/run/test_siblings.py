"""Runs side by side: what one has trained and scored, another with the same options takes over."""

import contextlib
import errno
import json
import os
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_run
from support import call_main, flip_a_bit, unpainted

from rose_jax import experiment
from rose_jax.run import scoring, trajectory
from rose_jax.run.identity import trajectory_options
from rose_jax.runtime import siblings
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir

FIRST, SECOND = "runs/digits_cold5_seed0", "runs/digits_cold5_evolution.alpha=0.05_seed0"


@pytest.fixture
def main(finished, tmp_path, monkeypatch):
    """The command line in an empty folder, where runs/ holds the finished run; and what it trains and streams."""
    shutil.copytree(finished[0], tmp_path / FIRST)
    (tmp_path / "tiny.py").write_text("from tiny_run import get_config")
    done = {"trained": [], "streamed": set()}
    one, run, stream, train = (
        *(Layout(jax.devices()[:1]), experiment.run),
        *(scoring.Scorer._run, trajectory.train_steps),
    )

    def counted_train(*args, **rest):
        done["trained"].append(int(args[4].number))
        return train(*args, **rest)

    monkeypatch.setattr(trajectory, "train_steps", counted_train)
    monkeypatch.setattr(
        scoring.Scorer, "_run", lambda self, view: done["streamed"].add(self.name) or stream(self, view)
    )
    monkeypatch.setattr(experiment, "run", lambda *args, **rest: run(*args, layout=one, **rest))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        done["trained"], done["streamed"] = [], set()
        with unpainted():
            call_main("--config", "tiny.py", *arguments)
        return done

    return call


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_two_values_of_an_option_are_two_workdirs_and_one_training(main, finished, tmp_path):
    assert main() == {"trained": [], "streamed": set()}, "the finished run is the first command's"
    assert main("--config.evolution.alpha=0.05") == {"trained": [], "streamed": {"gd", "rose"}}
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(
        name.removeprefix("runs/") for name in (FIRST, SECOND)
    )
    first, second = results(tmp_path / FIRST), results(tmp_path / SECOND)
    assert first["scores"] == finished[1]["scores"]
    for row in ("base", "projector"):
        assert second["scores"][row] == first["scores"][row]
    assert second["scores"]["rose"]["encoders"] == first["scores"]["rose"]["encoders"]
    assert second["scores"]["rose"]["options"] != first["scores"]["rose"]["options"]
    assert second["setting"]["note"] == "changed: evolution.alpha=0.05"
    trained = second["train"]["objectives"]["base"]
    assert trained["trained_in"] == "digits_cold5_seed0"
    assert trained["seconds"] == first["train"]["objectives"]["base"]["seconds"]
    # A link, not a copy; and each run stays whole without the other.
    manifest = "checkpoints/base/stage_002.manifest.json"
    assert (tmp_path / FIRST / manifest).samefile(tmp_path / SECOND / manifest)
    shutil.rmtree(tmp_path / FIRST)
    assert main("--config.evolution.alpha=0.05") == {"trained": [], "streamed": set()}
    assert results(tmp_path / SECOND)["scores"] == second["scores"]


def test_a_snapshot_that_is_missing_or_damaged_is_trained_here(main, tmp_path, caplog):
    folder = tmp_path / FIRST / "checkpoints" / "base"
    flip_a_bit(folder / "stage_001")
    done = main("--config.evolution.alpha=0.05", "--methods", "base")
    assert done == {"trained": [1, 2], "streamed": set()}, "the same bits have the same name: outcomes are taken"
    lines = [json.loads(line) for line in (tmp_path / SECOND / "metrics.jsonl").read_text().splitlines()]
    ends = {line["task"]: line.get("trained_in") for line in lines if line["step"] == line["steps"]}
    assert ends == {0: "digits_cold5_seed0", 1: None, 2: None}
    assert len(lines) == len(Workdir(tmp_path / FIRST, tiny_run.get_config()).lines())


def test_who_is_a_sibling(tmp_path):
    def make(name, **changes):
        config = tiny_run.get_config()
        for key, value in changes.items():
            section, _, option = key.rpartition("__")
            setattr(getattr(config, section) if section else config, option, value)
        with Workdir(tmp_path / name, config, "the data", share=True) as work:
            return work

    make("alpha", evolution__alpha=0.1)
    make("momentum", train__momentum=0.5)
    make("seed", seed=1)
    make("width", model__width=4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("[]")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    found = make("here", data__decode_workers=3).siblings
    assert [run.name for run in found.runs] == ["alpha", "momentum"]
    options = trajectory_options(tiny_run.get_config(), "base")
    for name, momentum in (("alpha", 0.9), ("momentum", 0.5)):
        path = tmp_path / name / "checkpoints" / "base" / "options.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(options | {"train.momentum": momentum}))
    assert [run.name for run in found.with_encoders("base", options)] == ["alpha"]
    assert list(found.with_encoders("efc", options)) == []
    with Workdir(tmp_path / "alone", tiny_run.get_config(), "the data") as work:
        assert work.siblings.runs == []
    with Workdir(tmp_path / "other data", tiny_run.get_config(), "other data", share=True) as work:
        assert work.siblings.runs == []


@pytest.mark.parametrize(("digest", "taken"), [("first", ["stage_001"]), ("rounded otherwise", [])])
def test_a_task_is_taken_only_if_it_continues_what_is_here(tmp_path, digest, taken):
    """Of an interrupted run: its first task is here, two are there."""
    config = tiny_run.get_config()
    here, there = (tmp_path / name / "checkpoints" / "base" for name in ("here", "there"))
    for folder, digests in ((here, [digest]), (there, ["first", "second"])):
        with contextlib.closing(Checkpoints(folder)) as checkpoints:
            for task, note in enumerate(digests):
                checkpoints.save(f"stage_{task:03d}", {"a": np.ones(3)}, note={"digest": note})
    (there / "options.json").write_text(json.dumps(trajectory_options(config, "base")))
    with Workdir(tmp_path / "there", config):
        pass
    with (
        Workdir(tmp_path / "here", config, share=True) as work,
        contextlib.closing(Checkpoints(here)) as checkpoints,
    ):
        opened = trajectory.Trajectory.__new__(trajectory.Trajectory)
        opened.name, opened.parts, opened.work = "base", SimpleNamespace(config=config), work
        opened.checkpoints, opened._tasks = checkpoints, 3
        opened._take_from_siblings()
    found = {path.name.removesuffix(".manifest.json") for path in here.iterdir()}
    assert found - {"options.json"} == {"stage_000", *taken}


@pytest.fixture
def saved(tmp_path):
    """A checkpoint in a folder of its own, and an empty folder."""
    here, there = Checkpoints(tmp_path / "here"), Checkpoints(tmp_path / "there")
    there.save("stage_000", {"a": np.arange(6.0), "b": {"c": np.ones((2, 3))}}, note={"digest": "x"})
    there.close()
    yield here, tmp_path / "there"
    here.close()


def test_a_kill_at_any_link_leaves_nothing_that_counts(saved, monkeypatch):
    here, there = saved
    files = sum(path.is_file() for path in there.rglob("*"))
    for last in range(files):
        left = last

        def link(source, target, real=os.link):
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr("rose_jax.runtime.files.os.link", link)
            with pytest.raises(KeyboardInterrupt):
                here.take("stage_000", there)
        assert here.problem("stage_000") in ("absent", "it was not completely written")
    assert here.take("stage_000", there)
    assert here.note("stage_000") == {"digest": "x"}


def test_without_hard_links_it_is_a_copy(saved, monkeypatch):
    here, there = saved

    def refuse(*args):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("rose_jax.runtime.files.os.link", refuse)
    assert here.take("stage_000", there)
    shutil.rmtree(there)
    assert here.usable("stage_000")
    assert not any(path.stat().st_nlink > 1 for path in here.folder.rglob("*") if path.is_file())


def test_what_is_absent_or_damaged_is_not_taken(saved):
    here, there = saved
    assert not here.take("stage_001", there)
    flip_a_bit(there / "stage_000")
    assert not here.take("stage_000", there)
    assert list(here.folder.iterdir()) == []


def test_files_are_taken_where_they_are_missing(tmp_path):
    for name, text in (
        ("one/scores/a.npz", "theirs"),
        ("one/scores/b.npz", "theirs"),
        ("here/scores/b.npz", "ours"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    here = tmp_path / "here"
    family = siblings.Siblings(here, [tmp_path / "gone", tmp_path / "one"])
    family.take([here / "scores" / name for name in ("a.npz", "b.npz", "c.npz")])
    assert {path.name: path.read_text() for path in (here / "scores").iterdir()} == {
        "a.npz": "theirs",
        "b.npz": "ours",
    }
