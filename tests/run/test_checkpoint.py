"""Checkpoints that are whole or not there."""

import errno
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import flip_a_bit

from rose_jax.errors import UserError
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.sharding import Layout


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path)
    yield made
    made.close()


def tree(value):
    return {"a": jnp.full((3, 4), value, jnp.float32), "b": {"step": jnp.int32(value), "none": {}}}


def restore(checkpoints, name):
    return checkpoints.restore(name, Layout(jax.devices()[:1]).replicated)


def test_what_is_saved_comes_back_bit_for_bit(checkpoints):
    value = {"x": jax.random.normal(jax.random.key(0), (5, 7)), "tiny": jnp.float32(1e-42)}
    checkpoints.save("stage_000", value, note={"seen": [1, 2.5]})
    checkpoints.wait()
    back = restore(checkpoints, "stage_000")
    for key, expected in value.items():
        assert np.asarray(back[key]).tobytes() == np.asarray(expected).tobytes()
    assert checkpoints.note("stage_000") == {"seen": [1, 2.5]}


def test_old_ones_are_pruned_by_prefix(checkpoints):
    checkpoints.save("stage_000", tree(0))
    for step in (1, 2, 3):
        checkpoints.save(f"task_001_step_{step:08d}", tree(step), keep=2)
    checkpoints.wait()
    assert checkpoints.names("task_001_step") == ["task_001_step_00000002", "task_001_step_00000003"]
    assert checkpoints.names("stage") == ["stage_000"]


def test_a_flipped_bit_is_noticed_and_named(checkpoints, tmp_path, caplog):
    checkpoints.save("stage_000", {"x": jax.random.normal(jax.random.key(0), (50, 70))})
    checkpoints.wait()
    assert checkpoints.usable("stage_000")
    path = flip_a_bit(tmp_path / "stage_000")
    with caplog.at_level(logging.WARNING):
        assert not checkpoints.usable("stage_000")
    assert "stage_000" in caplog.text
    assert path.name in caplog.text


def test_one_that_was_not_finished_does_not_count(checkpoints, tmp_path, caplog):
    checkpoints.save("stage_000", tree(0))
    checkpoints.wait()
    (tmp_path / "stage_000.manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert not checkpoints.usable("stage_000")
    assert "not completely written" in caplog.text
    checkpoints.save("stage_000", tree(1))  # and can be written anew
    checkpoints.wait()
    assert int(restore(checkpoints, "stage_000")["b"]["step"]) == 1


def test_a_file_that_vanished_is_noticed(checkpoints, tmp_path):
    checkpoints.save("stage_000", tree(0))
    checkpoints.wait()
    next(p for p in (tmp_path / "stage_000").rglob("*") if p.is_file()).unlink()
    assert not checkpoints.usable("stage_000")


def test_a_full_disk_is_one_clear_error_and_leaves_the_earlier_one(checkpoints, monkeypatch):
    checkpoints.save("stage_000", tree(0))
    checkpoints.wait()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._checkpointer, "save", full)
    with pytest.raises(UserError, match=r"stage_001 could not be written .*MiB are free.*No space left"):
        checkpoints.save("stage_001", tree(1))
    monkeypatch.undo()
    monkeypatch.setattr(
        "rose_jax.runtime.checkpoint.write_json", full
    )  # full only when the background thread commits
    checkpoints.save("stage_001", tree(1))
    with pytest.raises(UserError, match="stage_001 could not be written"):
        checkpoints.wait()
    assert checkpoints.usable("stage_000")
    assert not checkpoints.usable("stage_001")


def test_what_cannot_be_read_now_is_not_taken_for_damaged(checkpoints, monkeypatch):
    checkpoints.save("stage_000", tree(0))
    checkpoints.wait()

    def away(folder):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("rose_jax.runtime.checkpoint._checksums", away)
        with pytest.raises(UserError, match=r"stage_000 cannot be read: Stale file handle. Nothing was changed"):
            checkpoints.usable("stage_000")
    assert checkpoints.usable("stage_000")


def test_other_failures_are_not_blamed_on_the_disk(checkpoints, monkeypatch):
    def dead(*args, **kwargs):
        raise RuntimeError("a peer has left")

    monkeypatch.setattr(checkpoints._checkpointer, "save", dead)
    with pytest.raises(RuntimeError, match="a peer has left") as caught:
        checkpoints.save("stage_001", tree(1))
    assert "stage_001 was written" in caught.value.__notes__[0]


def test_attempts_are_those_that_were_cut_short_too(checkpoints, tmp_path):
    checkpoints.save("task_001_step_00000001", tree(1))
    checkpoints.wait()
    (tmp_path / "task_001_step_00000002").mkdir()
    assert checkpoints.names("task_001_step") == ["task_001_step_00000001"]
    assert checkpoints.attempts("task_001_step") == ["task_001_step_00000001", "task_001_step_00000002"]


@pytest.mark.parametrize(
    "damage", [lambda text: text.replace("0.25", "0.26"), lambda text: "null", lambda text: "{"]
)
def test_a_damaged_manifest_is_noticed(checkpoints, tmp_path, damage):
    """The note is restored as well, so it is as well protected as the arrays."""
    checkpoints.save("task_001_step_00000001", tree(1), note={"loss": 0.25})
    checkpoints.wait()
    assert checkpoints.problem("task_001_step_00000001") == ""
    path = tmp_path / "task_001_step_00000001.manifest.json"
    path.write_text(damage(path.read_text()))
    assert "manifest" in checkpoints.problem("task_001_step_00000001")


def test_busy_until_it_is_on_disk(checkpoints, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(checkpoints, "_commit", lambda *arguments: release.wait(60))
    assert not checkpoints.busy()
    checkpoints.save("stage_000", tree(0))
    assert checkpoints.busy()
    release.set()
    checkpoints.wait()
    assert not checkpoints.busy()
