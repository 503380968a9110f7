"""TensorBoard and W&B writers against fakes of the two packages: what is sent, and what a resume sends."""

import sys
import types

import pytest

from rose_jax.config import Config
from rose_jax.errors import UserError
from rose_jax.runtime.writers import Writer


def line(task, step, **more):
    base = {"objective": "base", "kind": "train", "task": task, "step": step, "steps": 40, "epoch": 1}
    return base | {"lr": 0.1, "images": 640, "seconds": 2.0, "loss": 1.5} | more


@pytest.fixture
def tensorboard(monkeypatch):
    """A tensorboardX that only writes down its calls."""
    fake = types.ModuleType("tensorboardX")
    fake.made = []

    class SummaryWriter:
        def __init__(self, logdir, purge_step):
            self.logdir, self.purge_step, self.scalars, self.calls = logdir, purge_step, {}, []
            fake.made.append(self)

        def add_scalar(self, tag, value, step):
            self.scalars[tag, step] = value

        def flush(self):
            self.calls.append("flush")

        def close(self):
            self.calls.append("close")

    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    return fake


@pytest.fixture
def wandb(monkeypatch):
    """A wandb whose runs are remembered by id, as its server does."""
    fake = types.ModuleType("wandb")
    fake.runs, fake.inits = {}, []

    class Run:
        def __init__(self):
            self.summary, self.logged, self.axes, self.finished = {}, [], {}, False

        def define_metric(self, name, step_metric):
            self.axes[name] = step_metric

        def log(self, values):
            self.logged.append(values)
            self.summary |= values

        def finish(self):
            self.finished = True

    def init(**options):
        fake.inits.append(options)
        return fake.runs.setdefault(options["id"], Run())

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_tensorboard_has_a_run_for_each_task_that_starts_where_the_log_does(tensorboard, tmp_path):
    writer = Writer("tensorboard", tmp_path, Config())
    for each in (line(0, 20), line(0, 40), line(1, 20)):
        writer(each)
    writer.close()
    first, second = tensorboard.made
    assert [first.logdir, second.logdir] == [
        str(tmp_path / "tensorboard" / "base" / f"task_00{task}") for task in (0, 1)
    ]
    assert first.purge_step == second.purge_step == 20
    assert first.scalars["train/loss", 40] == 1.5
    assert first.scalars["train/images_per_second", 20] == 320.0
    assert {tag for tag, _ in first.scalars} == {
        f"train/{name}" for name in ("epoch", "lr", "images", "seconds", "loss", "images_per_second")
    }
    assert first.calls == ["flush", "flush", "close"]
    assert second.calls == ["flush", "close"]


def test_wandb_sends_each_line_once_over_an_interruption(wandb, tmp_path):
    writer = Writer("wandb", tmp_path, Config(seed=7))
    for each in (line(0, 20), line(0, 40), line(1, 20)):
        writer(each)
    # Killed here, and restored before the last line: task 1 is logged again from step 20 on.
    writer = Writer("wandb", tmp_path, Config(seed=7))
    for each in (line(1, 20), line(1, 40)):
        writer(each)
    writer.close()
    (run,) = wandb.runs.values()
    steps = [(key, value) for values in run.logged for key, value in values.items() if key.endswith("/step")]
    assert steps == [
        ("base/task_000/step", 20),
        ("base/task_000/step", 40),
        ("base/task_001/step", 20),
        ("base/task_001/step", 40),
    ]
    assert run.logged[0]["base/task_000/loss"] == 1.5
    assert run.axes["base/task_001/*"] == "base/task_001/step"
    assert run.finished
    assert wandb.inits[0]["config"]["seed"] == 7
    assert wandb.inits[0]["name"] == tmp_path.name


def test_wandb_that_does_not_start_is_one_message(wandb, tmp_path):
    def refuse(**options):
        raise RuntimeError("api_key not configured")

    wandb.init = refuse
    with pytest.raises(UserError, match=r"api_key not configured.*wandb login.*WANDB_MODE=offline"):
        Writer("wandb", tmp_path, Config())


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_names_the_extra(monkeypatch, tmp_path, name, module):
    monkeypatch.setitem(sys.modules, module, None)  # what import then raises is an ImportError
    with pytest.raises(UserError, match=rf"(?s)needs the package {module}.*pip install 'rose-jax\[{name}\]'"):
        Writer(name, tmp_path, Config())


def test_an_unknown_name_gets_the_nearest_right_one(tmp_path):
    with pytest.raises(UserError, match=r"Unknown writer 'tensorbord'. Did you mean 'tensorboard'"):
        Writer("tensorbord", tmp_path, Config())


def test_a_writer_that_fails_is_dropped_with_one_warning(tensorboard, tmp_path, caplog):
    writer = Writer("tensorboard", tmp_path, Config())
    writer(line(0, 20))

    def full(*scalar):
        raise OSError("No space left on device")

    tensorboard.made[0].add_scalar = full
    writer(line(0, 40))
    writer(line(1, 20))
    writer.close()
    assert len(tensorboard.made) == 1
    assert [record.message for record in caplog.records] == [
        "The tensorboard writer failed and is left out from now on: No space left on device"
    ]
