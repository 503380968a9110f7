"""What goes wrong in a run is said: broken updates, too little memory, an interrupt, results that are none."""

import os
import re
import shutil
import signal

import jax
import numpy as np
import pytest
import tiny_run
from jax.errors import JaxRuntimeError
from support import exit_code, unpainted

from rose_jax import events, experiment
from rose_jax.errors import UserError
from rose_jax.run import scoring, trajectory
from rose_jax.runtime import hosts
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.memory import must_fit
from rose_jax.runtime.sharding import Layout

ONE = Layout(jax.devices()[:1])


@pytest.fixture
def main(tmp_path, monkeypatch):
    """Exit code of the command line with the tiny run's config, on one device."""
    real = experiment.run
    monkeypatch.setattr(experiment, "run", lambda *args, **rest: real(*args, layout=ONE, **rest))
    (tmp_path / "tiny.py").write_text("from tiny_run import get_config")
    return lambda *arguments: exit_code(
        "--config", tmp_path / "tiny.py", "--workdir", tmp_path / "run", *arguments
    )


def test_broken_updates_and_the_end_of_a_run_are_told(finished, tmp_path, monkeypatch, capsys, caplog):
    """In the log, in the table and in the report. (That they are counted: tests/evolution.)"""
    workdir = shutil.copytree(finished[0], tmp_path / "run")
    for path in (workdir / "scores").glob("*_true_means_*"):
        path.unlink()
    real = scoring._unpack
    monkeypatch.setattr(scoring, "_unpack", lambda arrays: real(arrays | {"counts/broken_steps": np.int32(7)}))
    config = tiny_run.get_config()
    config.methods = ("rose",)
    with unpainted():
        results = experiment.run(config, workdir, layout=ONE)
    words = "updates were not finite and kept the previous prototypes"
    for task in (1, 2, 3):
        assert f"base task {task}/3  rose: 7 {words}." in caplog.messages
    shown = capsys.readouterr()
    assert f"\nrose: 21 {words}." in shown.out
    for name in ("report.md", "report.html"):
        assert f"rose: 21 {words}." in (workdir / name).read_text()
    assert results["scores"]["rose"]["counts"]["broken_steps"] == 21
    passes = re.search(r"base true class means: (\d+) forward passes", shown.err)
    assert passes
    assert f"base true class means  {passes[1]}/{passes[1]}  images" in shown.err
    assert "writing the report" in shown.err


def test_what_an_event_says():
    assert events.told(
        {"images": 9, "bad_rows": 0, "broken_steps": 2, "ill_posed_steps": 1.0, "unscored": None}
    ) == [
        f"2 {events.EVENTS['broken_steps']}",
        f"1 {events.EVENTS['ill_posed_steps']}",
    ]


EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory allocating 8796093022208 bytes.\nand a long table"


def test_only_a_lack_of_memory_is_called_one():
    words = r"A step does not fit in memory \(RESOURCE_EXHAUSTED: .* bytes.\). Lower config.KEY \(now 8\), use more devices"
    for error in (JaxRuntimeError(EXHAUSTED), MemoryError("RESOURCE_EXHAUSTED: so many bytes.")):
        with pytest.raises(UserError, match=words), must_fit("A step", "config.KEY (now 8)"):
            raise error
    with pytest.raises(JaxRuntimeError, match="INTERNAL"), must_fit("A step", "config.KEY (now 8)"):
        raise JaxRuntimeError("INTERNAL: something else")


def test_a_batch_that_does_not_fit(main, finished, tmp_path, monkeypatch, capsys):
    """Of training, of either kind of recipe, and of the test stream."""

    def exhausted(*args, **rest):
        raise JaxRuntimeError(EXHAUSTED)

    monkeypatch.setattr(trajectory, "train_steps", exhausted)
    assert main("--methods", "efc") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        "error: A training step of 'efc' does not fit in memory (RESOURCE_EXHAUSTED: Out of memory"
    )
    assert "Lower config.efc.recipe.batch_size (now 64)" in said
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(finished[0], tmp_path / "run")
    monkeypatch.setattr(scoring, "run_stream", exhausted)
    assert main("--methods", "rose", "--config.evolution.alpha=0.3") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: The test stream of row 'rose' does not fit in memory")
    assert "Lower config.test.batch_size (now 128) or config.evolution.capacity (now 64)" in said


@pytest.mark.parametrize("content", ["[]", '{"scores": []}', "{", "7"])
def test_results_that_are_none_are_refused_before_training(main, tmp_path, capsys, content, monkeypatch):
    monkeypatch.setattr(trajectory, "train_steps", None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(content)
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/run/results.json is not the results of a run (")
    assert "Move it away" in said
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["results.json"], "nothing half-written"


@pytest.fixture
def interruptible():
    """A test command that was started in the background has inherited that Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_saves_and_says_how_to_go_on(main, tmp_path, monkeypatch, capsys):
    real, calls = trajectory.Trajectory._run_step, []

    def step(self, *args):
        calls.append(self)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *args)

    monkeypatch.setattr(trajectory.Trajectory, "_run_step", step)
    before = signal.getsignal(signal.SIGINT)
    assert main("--methods", "base") == 130
    assert "Saved and stopped at step 3 of task 1. The same command continues there." in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    saved = Checkpoints(tmp_path / "run" / "checkpoints" / "base")
    assert saved.usable("task_000_step_00000003")
    saved.close()


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_does_not_wait(capsys):
    preemption = hosts.Preemption()
    try:
        assert not preemption.asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert preemption.asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(hosts.Preempted) as stop:
            preemption.stop("stopped")
        assert stop.value.exit_code == 130
    finally:
        preemption.close()


def test_a_preemption_notice_asks_to_be_run_again():
    preemption = hosts.Preemption()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.asked()
        with pytest.raises(hosts.Preempted) as stop:
            preemption.stop("stopped")
        assert stop.value.exit_code == 75
    finally:
        preemption.close()


def test_an_interrupt_before_the_run_is_open(main, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "make_features", interrupt)
    assert main() == 130
    assert capsys.readouterr().err == (
        "Interrupted. What was saved before is whole: the same command continues there.\n"
    )
