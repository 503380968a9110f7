"""A killed run ends with the same bits as one never killed (scripts/kill_test does the killing)."""

import os
import subprocess
import sys

import pytest
import tiny_run
from PIL import Image
from support import load_script

script = load_script("kill_test")


def kill_test(*arguments):
    """As users run it: on one device, with optimised code, which takes long to compile."""
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "NPROC")}
    command = [sys.executable, "scripts/kill_test", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT identical" not in done.stdout
    return done.stdout


SMALL = [
    "--config.model.width=1",
    "--config.train.first.epochs=2",
    "--config.train.later.epochs=2",
    "--config.train.log_every=3",
    "--config.train.checkpoint_every=2",
    "--config.scenario.task_sizes=(5,5)",
]


def test_a_kill(tmp_path, capsys, monkeypatch):
    """Both runs in processes with one device: with eight, convolutions are computed in another way."""
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1"))
    options = ["--kills", "1", "--at", "checkpoints/base/task_001_step_*.manifest.json"]
    options += ["--folder", str(tmp_path), "--config", tiny_run.__file__]
    assert script.main([*options, "--", "--config.train.checkpoint_every=2", "--methods", "base,rose"]) == 0
    assert "exit code -9\n1 x SIGKILL over 1 runs: identical" in capsys.readouterr().out
    figure = Image.open(tmp_path / "killed0" / "figures" / "curves.png")
    assert figure.width > 750, "a real one"


@pytest.mark.slow
def test_ten_kills():
    assert "10 x SIGKILL" in kill_test("--kills", "10")


@pytest.mark.slow
def test_kills_of_the_compared_methods():
    """What EFC and FCS hold between tasks, and rows that train something of their own after each."""
    short = [f"--config.{name}.recipe.{part}.epochs=2" for name in ("efc", "fcs") for part in ("first", "later")]
    short += [
        f"--config.{name}.recipe.{part}.milestones=()" for name in ("efc", "fcs") for part in ("first", "later")
    ]
    out = kill_test("--kills", "6", "--", *SMALL, *short, "--methods=ldc,adc,efc+rose,fcs,fcs+rose")
    assert "6 x SIGKILL" in out


@pytest.mark.slow
def test_kills_of_rows_that_adapt_the_network():
    """Weights, moments, queues and draws of a stream that was cut off are made again from the stage's start."""
    rows = "--methods=tent,eata,cotta,ttt,ttt++"
    out = kill_test("--kills", "4", "--", *SMALL, "--config.cotta.augmentations=2", rows)
    assert "4 x SIGKILL" in out


@pytest.mark.slow
def test_kills_of_a_streamed_run():
    small = ["--config.model.width=1", "--config.data.images_per_class=2", "--config.scenario.task_sizes=(60,40)"]
    small += ["--config.data.decode_workers=1", "--config.train.log_every=2", "--config.train.checkpoint_every=2"]
    out = kill_test(
        "--kills", "3", "--config", "configs/imagenet100_cold10.py:smoke", "--", *small, "--methods=rose"
    )
    assert "3 x SIGKILL" in out


@pytest.mark.slow
def test_kills_of_a_whitened_row():
    """At d = 256, where LAPACK's threads change the bits of what they factorise."""
    wide = [argument for argument in SMALL if "width" not in argument] + ["--config.model.width=32"]
    assert "2 x SIGKILL" in kill_test("--kills", "2", "--", *wide, "--methods=rose_whitened")


@pytest.mark.slow
def test_preemption_notices():
    assert "exit code 75" in kill_test("--kills", "3", "--signal", "TERM")
