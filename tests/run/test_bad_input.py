"""What a user can get wrong, and the message each mistake gets. (Data files: tests/data.)"""

import errno
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny_run
from support import call_main

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax.config import Config, validate
from rose_jax.errors import UserError
from rose_jax.methods import resolve
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir
from rose_jax.train.loop import Window


def test_unknown_method_names_the_nearest():
    with pytest.raises(UserError, match="Unknown method 'rosse'. Did you mean 'rose'"):
        resolve(["base", "rosse"])


def test_no_method_at_all():
    with pytest.raises(UserError, match="--methods is empty"):
        resolve([])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.head", "cosin", "config.model.head 'cosin'. Did you mean 'cosine'"),
        ("loss.supcon_denominator", "negative", "Did you mean 'negatives'"),
        ("train.batch_size", 0, "config.train.batch_size is 0; it must be a whole number, at least 1"),
        ("evolution.alpha", -1.0, "config.evolution.alpha is -1.0"),
        (
            "train.first.milestones",
            (5, 3),
            r"milestones is \(5, 3\); it must be a tuple of increasing whole numbers",
        ),
        ("fcs.recipe.later.milestones", (5, 3), "config.fcs.recipe.later.milestones is .* increasing"),
        (
            "efc.recipe.first.epochs",
            0,
            "config.efc.recipe.first.epochs is 0; it must be a whole number, at least 1",
        ),
        ("ldc.epochs", 0, "config.ldc.epochs is 0; it must be a whole number, at least 1"),
        ("efc.sigma", 0.0, "config.efc.sigma is 0.0; it must be a finite number, above 0"),
        ("sdc.sigma", float("nan"), "config.sdc.sigma is nan; it must be a finite number, above 0"),
        ("sdc.floor", -1.0, "config.sdc.floor is -1.0; it must be a finite number, at least 0"),
        ("test.distance", "euclid", "Did you mean 'euclidean'"),
    ],
)
def test_config_values(key, value, words):
    config = Config()
    *path, last = key.split(".")
    target = config
    for part in path:
        target = getattr(target, part)
    setattr(target, last, value)
    with pytest.raises(UserError, match=words):
        validate(config)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "configs/digits_cold5.py", "--config.train.batchsize=3"], "Did you mean 'train.batch_size'"),
        (["--config", "configs/digits_cold5.py", "--methods", "ros"], "Did you mean 'rose'"),
        (["--config", "configs/nothing.py"], "There is no config file configs/nothing.py"),
        (["--config", "configs/cifar100_cold10.py:thn"], "Did you mean 'thin'"),
        (["--config", "configs/digits_cold5.py", "--num_processes=2"], "belong together"),
        (["--config", "configs/digits_cold5.py", "--process_id=0"], "belong together"),
        (
            ["--config", "configs/cifar100_cold10.py", "--config.data.dir=nowhere"],
            "scripts/prepare_data cifar100",
        ),
    ],
)
def test_command_line(arguments, words, tmp_path):
    with pytest.raises(UserError, match=words):
        call_main(*arguments, "--workdir", tmp_path / "run")


@pytest.mark.parametrize("mistake", ["--config.train.batchsize=3", "--config.train.batch_size=0"])
def test_a_mistake_ends_the_process_with_one_message(mistake, tmp_path):
    """Whether the command line is read or the run begun."""
    run = ["--config", "configs/digits_cold5.py", mistake, "--workdir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "rose_jax.main", *run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert "train.batch_size" in message


def test_a_non_finite_term_stops_with_its_step_and_name():
    window = Window()
    window.add(41, {"ce": jax.numpy.float32(1), "kd": jax.numpy.float32(2)})
    window.add(42, {"ce": jax.numpy.float32(1), "kd": jax.numpy.float32(np.nan)})
    with pytest.raises(
        UserError, match="kd not finite at or just before step 42 of task 4.*snapshots of earlier tasks are kept"
    ):
        window.close(3)


def test_a_run_that_diverges_keeps_the_earlier_snapshot(tmp_path):
    config = tiny_run.get_config()
    config.train.later.lr = float("inf")
    config.methods = ("base",)
    with pytest.raises(UserError, match="not finite at or just before step .* of task 2"):
        experiment.run(config, tmp_path, layout=Layout(jax.devices()[:1]))
    kept = {path.name for path in (tmp_path / "checkpoints" / "base").iterdir()}
    assert {"stage_000", "stage_000.manifest.json"} <= kept
    assert not any(name.startswith("stage_001") for name in kept)


def test_a_workdir_of_another_config_shows_what_differs(tmp_path):
    one, two = get_config(), get_config()
    two.data.pad, two.seed, two.methods = 3, 5, ("rose",)
    with Workdir(tmp_path, one):
        pass
    with pytest.raises(UserError) as raised, Workdir(tmp_path, two):
        pass
    message = str(raised.value)
    assert "data.pad: there 2, here 3" in message
    assert "seed: there 0, here 5" in message
    assert "methods" not in message, "rows may be added to a trajectory that is there"
    assert "--overwrite" in message
    (tmp_path / "results.json").write_text("{}")
    with Workdir(tmp_path, one, overwrite=True):
        pass
    assert (tmp_path / "results.json").exists(), "nothing to overwrite: the config is the same"
    with Workdir(tmp_path, two, overwrite=True):
        pass
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 5
    assert not (tmp_path / "results.json").exists()


def test_a_workdir_of_other_data_is_refused(tmp_path):
    config = get_config()
    with Workdir(tmp_path, config, "synthetic digits, 10 + 10 images"):
        pass
    words = "data_identity: there 'synthetic digits.*here 'complete digits"
    with pytest.raises(UserError, match=words), Workdir(tmp_path, config, "complete digits, 10 + 10 images"):
        pass


def test_encoders_can_be_scored_with_other_options(tmp_path):
    """Which rows such a change concerns: tests/run/test_identity.py."""
    config = get_config()
    with Workdir(tmp_path, config):
        pass
    config.evolution.alpha, config.adc.step_norm, config.metric.ridge = 0.02, "image", 0.1
    with Workdir(tmp_path, config):
        pass


@pytest.mark.parametrize("content", ["{", "[]", "7"])
def test_a_damaged_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match="config.json is not the config of a run"), Workdir(tmp_path, get_config()):
        pass


def test_a_misspelt_writer_overwrites_nothing(tmp_path):
    config = get_config()
    with Workdir(tmp_path, config):
        (tmp_path / "results.json").write_text("{}")
    config.seed = 1
    with (
        pytest.raises(UserError, match="Unknown writer 'tensorbord'"),
        Workdir(tmp_path, config, overwrite=True, writers=("tensorbord",)),
    ):
        pass
    assert (tmp_path / "results.json").exists()


def test_what_cannot_be_removed_is_not_taken_for_the_new_run(tmp_path, monkeypatch):
    config = get_config()
    with Workdir(tmp_path, config):
        (tmp_path / "checkpoints").mkdir()

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("rose_jax.runtime.workdir.shutil.rmtree", refuse)
    config.seed = 1
    with pytest.raises(UserError, match="cannot remove .*checkpoints: Permission denied"):  # noqa: SIM117
        with Workdir(tmp_path, config, overwrite=True):
            pass
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0


def test_what_a_kill_left_is_cleared_away(tmp_path):
    leftovers = [
        ".results.json.ab12_xyz",
        "scores/.rose.npz.ab12_xyz",
        "checkpoints/base/.stage_000.json.ab12_xyz",
    ]
    leftovers.append(".shared_123")
    kept = [".lock", ".hidden", "scores/.rose.npz", "notes.txt"]
    for name in (*leftovers, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with Workdir(tmp_path, get_config()):
        assert not any((tmp_path / name).exists() for name in leftovers)
        assert all((tmp_path / name).exists() for name in kept)


def test_too_little_space_is_said_at_the_start(tmp_path):
    with (
        Workdir(tmp_path, get_config()) as work,
        pytest.raises(UserError, match="needs about 1099511627776 MiB .*MiB free"),
    ):
        work.need_space(2**60)


def test_a_workdir_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rose_jax.runtime.workdir.fcntl.flock", refuse)
    with (
        pytest.raises(UserError, match="Cannot write to the workdir .*Permission denied"),
        Workdir(tmp_path, get_config()),
    ):
        pass


def test_a_config_key_newer_than_the_workdir_had_its_default(tmp_path):
    config = get_config()
    with Workdir(tmp_path, config):
        pass
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["evolution"]["evolve_every"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with Workdir(tmp_path, config):
        pass


def test_a_second_run_on_a_workdir_is_refused(tmp_path):
    config = get_config()
    with (
        Workdir(tmp_path, config),
        pytest.raises(UserError, match="Another run is using the workdir"),
        Workdir(tmp_path, config),
    ):
        pass
    with Workdir(tmp_path, config):  # the lock went with its holder
        pass


def test_a_workdir_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="Cannot make the workdir .*file/run"),
        Workdir(tmp_path / "file" / "run", get_config()),
    ):
        pass
