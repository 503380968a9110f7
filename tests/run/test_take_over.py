"""A first task that two objectives have in common is trained once: SSRE's, taken over from a stand-in for PASS.

The stand-in is lwf with rotations as classes and a linear head: four outputs a class, as PASS has them.
"""

import jax
import numpy as np
import pytest
import support
import tiny_run

from rose_jax import experiment
from rose_jax.errors import UserError
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime.sharding import Layout
from rose_jax.train.objectives import OBJECTIVES


def config(methods, **options):
    made = tiny_run.get_config()
    made.methods = methods
    made.model.width, made.model.head = 1, "linear"
    made.loss.expand_labels = made.lwf.expand_labels = True
    made.loss.second_view = False  # half a minute to compile
    made.ssre.base, made.ssre.recipe.batch_size, made.ssre.prototype_batch = "pass", 32, 32
    made.ssre.prototypes = "plain"  # the stand-in makes no others
    for schedule in (made.ssre.recipe.first, made.ssre.recipe.later):
        schedule.epochs, schedule.milestones = 1, ()
    for name, value in options.items():
        setattr(made.ssre, name, value)
    return made


def run(workdir, *methods, **options):
    with support.unpainted():
        return experiment.run(config(methods, **options), workdir, layout=Layout(jax.devices()[:1]))


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(
        OBJECTIVES,
        "ssre",
        OBJECTIVES["ssre"]._replace(
            first_from="lwf", options=(*OBJECTIVES["ssre"].options, "train.first", "lwf.expand_labels")
        ),
    )


@pytest.fixture
def trained(monkeypatch):
    """(objective, task) of all that is trained."""
    seen, resume = [], Trajectory._resume

    def counted(self, state, task):
        seen.append((self.name, task))
        return resume(self, state, task)

    monkeypatch.setattr(Trajectory, "_resume", counted)
    return seen


def test_the_first_task_is_trained_once_and_saved_by_both(tmp_path, stand_in, trained):
    first = run(tmp_path, "ssre", "ssre+rose")
    assert trained == [("lwf", 0), ("ssre", 1), ("ssre", 2)]
    theirs = support.snapshot_arrays(tmp_path / "checkpoints" / "lwf" / "stage_000")
    ours = support.snapshot_arrays(tmp_path / "checkpoints" / "ssre" / "stage_000")
    np.testing.assert_array_equal(ours["['head']['bias']"], theirs["['head']['bias']"][::4])
    np.testing.assert_array_equal(ours["['memory']['mean']"], theirs["['memory']['mean']"])
    assert not (tmp_path / "checkpoints" / "lwf" / "stage_001").exists()

    trained.clear()
    assert run(tmp_path, "ssre", "ssre+rose")["scores"]["ssre"]["last"] == first["scores"]["ssre"]["last"]
    assert trained == [], "its own snapshots are all that it needs"
    run(tmp_path, "lwf")
    assert trained == [("lwf", 1), ("lwf", 2)]


def test_both_in_one_command_in_either_order(tmp_path, stand_in, trained):
    run(tmp_path, "ssre", "lwf")
    assert sorted(trained) == [("lwf", 0), ("lwf", 1), ("lwf", 2), ("ssre", 1), ("ssre", 2)]
    assert trained.index(("lwf", 0)) == 0


def test_a_first_task_of_its_own(tmp_path, stand_in, trained):
    run(tmp_path, "ssre", base="plain")
    assert trained == [("ssre", 0), ("ssre", 1), ("ssre", 2)]
    with pytest.raises(UserError, match=r"encoders of 'ssre' .*\n  ssre.base: there 'plain', here 'pass'"):
        run(tmp_path, "ssre")


def test_an_objective_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "ssre", OBJECTIVES["ssre"]._replace(first_from="nobody"))
    with pytest.raises(UserError, match="Unknown objective whose first task 'ssre' takes over 'nobody'"):
        run(tmp_path, "ssre")
