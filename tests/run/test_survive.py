"""What a run meets on its way (a stop, a damaged checkpoint, a full disk) changes nothing in what it ends with.

Two objectives and two steps per call throughout. Real kills of real processes: tests/run/test_kill.py.
"""

import errno
import json
import logging
import os
import shutil
import threading
from types import SimpleNamespace

import jax
import pytest
from support import call_main, flip_a_bit, load_script

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax import main as main_lib
from rose_jax.errors import UserError
from rose_jax.run import trajectory
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.sharding import Layout

kill_test = load_script("kill_test")


def small_config():
    config = get_config()
    config.methods = ("lwf", "base")
    config.scenario.task_sizes = (5, 5)
    config.data.images_per_class = 71  # 11 steps of a task: the last call has one
    config.model.encoder, config.model.width = "tiny", 1
    config.train.batch_size, config.train.steps_per_call = 32, 2
    config.train.first.epochs = config.train.later.epochs = 1
    config.train.first.milestones = config.train.later.milestones = ()
    config.train.checkpoint_every, config.train.log_every = 2, 3
    return config


def run(workdir):
    return experiment.run(small_config(), workdir, layout=Layout(jax.devices()[:1]))


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """The runs of this file share data and programs, or compiling would be most of what they do."""
    kept = {}

    def share(patch, room, name, key):
        real = getattr(room, name)

        def shared(*parts):
            address = (name, key(*parts))
            if address not in kept:
                kept[address] = real(*parts)
            return kept[address]

        patch.setattr(room, name, shared)

    with pytest.MonkeyPatch.context() as patch:
        share(patch, experiment, "make_features", lambda *parts: None)
        share(patch, trajectory, "make_objective", lambda name, *parts: name)
        share(patch, trajectory, "make_begin", lambda objective, *parts: id(objective))
        share(patch, trajectory, "make_step", lambda objective, *parts: id(objective))
        yield


@pytest.fixture(scope="module", autouse=True)
def every_checkpoint_is_taken():
    """One that is due while the last is still being written would be put off, on a slow disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "busy", lambda self: self.wait() is not None)
        yield


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def stop_at(monkeypatch, objective, task, step):
    real = experiment.Trajectory.after_call

    def after_call(self, now, *rest):
        act = real(self, now, *rest)

        def stop(state, done, window):
            if (self.name, now) == (objective, task) and done >= step:
                raise Stopped
            act(state, done, window)

        return stop

    monkeypatch.setattr(experiment.Trajectory, "after_call", after_call)


def steps_of(folder, task):
    return sorted(int(p.name[14:22]) for p in folder.glob(f"task_{task:03d}_step_*.manifest.json"))


def lines(workdir):
    found = [kill_test.plain(json.loads(x)) for x in (workdir / "metrics.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda line: (line["objective"], line["task"], line["step"]))


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The run that nothing happens to."""
    workdir = tmp_path_factory.mktemp("calm")
    run(workdir)
    return workdir


@pytest.fixture
def nearly(calm, tmp_path):
    """The same, with the last task of its last objective still to be trained."""
    workdir = tmp_path / "run"
    shutil.copytree(calm, workdir)
    shutil.rmtree(workdir / "checkpoints" / "base" / "stage_001")
    (workdir / "checkpoints" / "base" / "stage_001.manifest.json").unlink()
    for path in workdir.glob("scores/base_*_stage_001.npz"):
        path.unlink()
    (workdir / "results.json").unlink()
    return workdir


def test_two_objectives_stopped_twice_end_with_the_same_bits(calm, tmp_path, monkeypatch):
    for objective in ("lwf", "base"):
        stop_at(monkeypatch, objective, 1, 7)
        with pytest.raises(Stopped):
            run(tmp_path)
        monkeypatch.undo()
        assert steps_of(tmp_path / "checkpoints" / objective, 1) == [4, 6]
    run(tmp_path)
    assert kill_test.compare(calm, tmp_path) == []


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(calm, nearly, monkeypatch, caplog):
    stop_at(monkeypatch, "base", 1, 7)
    with pytest.raises(Stopped):
        run(nearly)
    monkeypatch.undo()
    folder = nearly / "checkpoints" / "base"
    assert steps_of(folder, 1) == [4, 6]
    file = flip_a_bit(folder / "task_001_step_00000006")
    began = []
    real = experiment.Trajectory.after_call
    monkeypatch.setattr(
        experiment.Trajectory, "after_call", lambda self, *a: began.append((self.name, *a[:2])) or real(self, *a)
    )
    with caplog.at_level(logging.WARNING):
        run(nearly)
    assert "task_001_step_00000006 is not used" in caplog.text
    assert f"{file.name} does not have the content that was written" in caplog.text
    assert began == [("base", 1, 4)], "it went on from the checkpoint before"
    assert kill_test.compare(calm, nearly) == []


def test_a_damaged_snapshot_is_named_and_its_task_trained_again(calm, tmp_path, monkeypatch, caplog):
    """The tasks after it are kept: they were trained on what it was before the damage, and is again."""
    workdir = tmp_path / "run"
    shutil.copytree(calm, workdir)
    file = flip_a_bit(workdir / "checkpoints" / "base" / "stage_000")
    began = []
    real = experiment.Trajectory.after_call
    monkeypatch.setattr(
        experiment.Trajectory, "after_call", lambda self, *a: began.append((self.name, *a[:2])) or real(self, *a)
    )
    with caplog.at_level(logging.WARNING):
        run(workdir)
    warnings = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(warnings) == 1
    assert "base/stage_000 is not used" in warnings[0]
    assert file.name in warnings[0]
    assert began == [("base", 0, 0)]
    assert lines(workdir) == lines(calm)
    shutil.copy(calm / "metrics.jsonl", workdir)  # its lines come last now, but are the same
    assert kill_test.compare(calm, workdir) == []


@pytest.fixture
def main_on_one_device(monkeypatch):
    """python -m rose_jax.main in this process."""
    one, real = Layout(jax.devices()[:1]), experiment.run
    monkeypatch.setattr(experiment, "run", lambda *a, **k: real(*a, layout=one, **k))
    monkeypatch.setattr(main_lib, "_CONFIG", SimpleNamespace(value=small_config()))
    monkeypatch.setattr(main_lib.commandline, "load_unchanged", lambda file: small_config())
    return lambda workdir: call_main("--config", "configs/digits_cold5.py", "--workdir", workdir)


@pytest.mark.parametrize(
    ("background", "writes", "words"),
    [
        (
            True,
            2,
            r"checkpoint .*task_001_step_00000006 could not be written .*MiB are free there.*: .*No space left",
        ),
        (
            False,
            4,
            r"The disk of .*run is full, or its quota used up\. Earlier checkpoints are intact; make room and rerun",
        ),
    ],
    ids=["checkpoints", "log"],
)
def test_a_disk_that_fills_ends_the_run_with_one_clear_error(
    calm, nearly, main_on_one_device, monkeypatch, background, writes, words
):
    """After so many flushed files there is no more room: for checkpoints, in the background, or for the log."""
    count, real = 0, os.fsync

    def fsync(handle):
        nonlocal count
        if background == (threading.current_thread() is not threading.main_thread()):
            count += 1
            if count > writes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(UserError, match=words):
            main_on_one_device(nearly)
    folder = nearly / "checkpoints" / "base"
    checkpoints = Checkpoints(folder)
    kept = [f"task_001_step_{step:08d}" for step in steps_of(folder, 1)]
    assert kept, "it went on for a while"
    assert all(checkpoints.usable(name) for name in ("stage_000", *kept))
    checkpoints.close()
    main_on_one_device(nearly)
    assert kill_test.compare(calm, nearly) == []
