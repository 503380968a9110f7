"""The room that checkpoints will take is known at the start, and better once the first snapshot is there."""

import shutil
from types import SimpleNamespace

import jax
import pytest

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax.errors import UserError
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir


def small_config(name):
    config = get_config()
    config.scenario.task_sizes = (4, 3, 3)
    config.model.width, config.efc.recipe.batch_size = 2, 32
    config.efc.recipe.first.epochs = config.efc.recipe.later.epochs = 1
    config.efc.recipe.first.milestones = ()
    config.methods = (name,)
    return config


def free(monkeypatch, room):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=room))


def test_a_disk_without_room_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr("rose_jax.run.trajectory.train_steps", None)  # calling it would fail
    free(monkeypatch, 1000)
    with pytest.raises(UserError, match=r"needs about \d+ MiB for its checkpoints, but .*MiB free. Make room"):
        experiment.run(small_config("base"), tmp_path, layout=Layout(jax.devices()[:1]))


def test_the_first_snapshot_tells_what_an_objective_keeps(tmp_path, monkeypatch):
    """EFC's covariances are in no state of training: the check after the first task knows them."""
    asked, real = [], Workdir.need_space

    def need_space(self, needed):
        asked.append(needed)
        if len(asked) == 2:
            folder = self.path / "checkpoints" / "efc" / "stage_000"
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            assert needed >= 2 * size, "two more of the same are to come"
            free(monkeypatch, needed - 1)
        real(self, needed)

    monkeypatch.setattr(Workdir, "need_space", need_space)
    with pytest.raises(UserError, match="Make room"):
        experiment.run(small_config("efc"), tmp_path, layout=Layout(jax.devices()[:1]))
    monkeypatch.undo()
    assert (tmp_path / "checkpoints" / "efc" / "stage_000.manifest.json").exists(), "what was trained is kept"
