"""A run's copy elsewhere: what is copied, what is taken back, and what is never overwritten."""

import json
import logging
import os
import shutil
import sys
import time

import flaky_store  # makes flaky:// known
import fsspec
import numpy as np
import pytest
import tiny_run
from support import call_main, load_script

from rose_jax.errors import UserError
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.mirror import Mirror, check_mirror, contents, mirror, store
from rose_jax.runtime.workdir import Workdir

script = load_script("kill_test")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(store, "FIRST_WAIT", 0.001)
    fsspec.filesystem("memory").store.clear()


def make_run(folder, snapshots=1, step=0, config="{}"):
    """A workdir with a log, and checkpoints whose content says what they are."""
    (folder / "checkpoints/base").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "checkpoints/base/options.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(10 * snapshots + step)))
    names = [f"stage_{task:03d}" for task in range(snapshots)]
    names += [f"task_{snapshots:03d}_step_{step:08d}"] if step else []
    checkpoints = Checkpoints(folder / "checkpoints/base")
    for name in names:
        checkpoints.save(name, {"a": np.full(3, len(name) + snapshots)}, note={"digest": name})
    checkpoints.close()
    return folder


def copied(folder, url):
    """The mirror of a workdir after one copy."""
    made = Mirror(url, folder)
    made.fill()
    made.start()
    made.close()
    return made


def content(folder):
    """Of all files that a run is made of."""
    names = [path for path in contents.complete_files(folder) if (folder / path).exists()]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("kind", ["memory", "path", "flaky"])
def test_a_lost_workdir_is_filled_from_its_mirror(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(store, "TRIES", 12)
    url = {"memory": "memory://bucket", "path": str(tmp_path / "copies"), "flaky": f"flaky://{tmp_path}/copies"}[
        kind
    ]
    run = make_run(tmp_path / "runs" / "one", snapshots=2, step=7)
    (run / "scores").mkdir()
    (run / "scores/rose_x_stage_000.npz").write_bytes(b"outcome")
    (run / ".config.json.abcdefgh").write_text("half written")
    (run / "checkpoints/base/stage_009").mkdir()  # without a manifest it is not complete
    (run / "checkpoints/base/stage_009/data").write_text("half written")
    before = content(run)
    assert {"metrics.jsonl", "scores/rose_x_stage_000.npz"} < set(before)
    copied(run, url)
    shutil.rmtree(run)
    run.mkdir()
    Mirror(url, run).fill()
    assert content(run) == before
    assert not (run / "checkpoints/base/stage_009").exists()
    assert not list(run.glob(".*"))
    usable = Checkpoints(run / "checkpoints/base")
    assert all(usable.usable(name) for name in ("stage_000", "stage_001", "task_002_step_00000007"))
    usable.close()


def test_only_what_changed_is_copied_again_and_what_is_obsolete_goes(tmp_path):
    run = make_run(tmp_path / "one", snapshots=1, step=3)
    made = Mirror(str(tmp_path / "copies"), run)
    made.start()
    made.close()
    first = made.store.newest()
    objects = tmp_path / "copies/one/objects"
    times = {path.name: path.stat().st_mtime_ns for path in objects.iterdir()}
    for step in (5, 8, 9):
        shutil.rmtree(run / "checkpoints/base")
        make_run(run, snapshots=1, step=step)
        made.copy()
    newest = made.store.newest()
    assert (first.number, newest.number, made.store.manifests()) == (1, 4, [4, 3])
    steps = [path for path in newest.files if path.endswith("manifest.json") and "task_" in path]
    assert steps == ["checkpoints/base/task_001_step_00000009.manifest.json"]
    named = set(newest.files.values()) | set(made.store.manifest(3).files.values())
    assert {path.name for path in objects.iterdir()} == named, "nothing is left of earlier steps"
    kept = newest.files["config.json"]
    assert (objects / kept).stat().st_mtime_ns == times[kept]
    made.copy()
    assert made.store.manifests() == [4, 3], "nothing is new"


def test_damaged_and_half_written_copies_are_recognised(tmp_path, caplog):
    run = make_run(tmp_path / "one", snapshots=1)
    before, url = content(run), str(tmp_path / "copies")
    made = copied(run, url)
    objects, old = tmp_path / "copies/one/objects", set(made.store.newest().files.values())
    make_run(run, snapshots=2)
    made.copy()
    (tmp_path / "copies/one/manifest_00000003.json").write_text('{"number": 3, "files"')  # half written
    newer = next(path for path in objects.iterdir() if path.name not in old and path.stat().st_size > 20)
    newer.write_bytes(newer.read_bytes()[:-1])
    shutil.rmtree(run)
    run.mkdir()
    Mirror(url, run).fill()
    assert content(run) == before, "the manifest before is whole"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    # If none is whole: what is damaged is left out and named, and a snapshot without it does not count.
    shutil.rmtree(run)
    run.mkdir()
    manifest = made.store.newest().files
    data = max((p for p in manifest if "/stage_000/" in p), key=lambda p: (objects / manifest[p]).stat().st_size)
    (objects / manifest[data]).write_bytes(b"")
    Mirror(url, run).fill()
    assert "damaged copies are not used" in caplog.text
    checkpoints = Checkpoints(run / "checkpoints/base")
    assert not checkpoints.usable("stage_000")
    checkpoints.close()


def test_a_newer_workdir_is_not_overwritten_and_an_older_one_is_brought_up(tmp_path):
    url = str(tmp_path / "copies")
    run = make_run(tmp_path / "one", snapshots=2, step=4)
    copied(run, url)
    shutil.copytree(run, tmp_path / "other machine")
    newer = make_run(run, snapshots=3)
    before = content(newer)
    Mirror(url, newer).fill()
    assert content(newer) == before
    copied(newer, url)
    elsewhere = (tmp_path / "other machine").rename(tmp_path / "there")
    (tmp_path / "x").mkdir()
    older = elsewhere.rename(tmp_path / "x" / "one")
    Mirror(url, older).fill()
    assert content(older) == content(newer)


def test_a_mirror_that_is_ahead_is_not_overwritten_by_a_run_that_could_not_read_it(tmp_path, monkeypatch, caplog):
    """The bucket was out of reach when an empty workdir was opened: the run began anew."""
    caplog.set_level(logging.INFO)
    url = f"flaky://{tmp_path}/copies"
    monkeypatch.setenv("FLAKY_SHARE", "0")
    made = copied(make_run(tmp_path / "one", snapshots=2), url)
    shutil.rmtree(tmp_path / "one")
    monkeypatch.setenv("FLAKY_SHARE", "1")
    run = make_run(tmp_path / "one", snapshots=1)
    late = Mirror(url, run)
    late.fill()
    late._ours = "another"
    monkeypatch.setenv("FLAKY_SHARE", "0")
    late.copy()
    assert made.store.newest().number == 1, "its copy stays"
    make_run(run, snapshots=2)
    late.copy()
    assert (made.store.newest().number, made.store.newest().writer) == (2, "another")


def test_an_unreachable_bucket_is_one_warning(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 0.001)
    acts = 0

    def refuse(self):
        nonlocal acts
        acts += 1
        raise ConnectionError("the store does not answer")

    monkeypatch.setattr(flaky_store.FlakyFileSystem, "_may_fail", refuse)
    run = make_run(tmp_path / "one")
    made = Mirror(f"flaky://{tmp_path}/copies", run)
    assert made.saved_config() is None
    made.fill()
    made.start()
    while acts < 20:  # the thread tries again and again
        time.sleep(0.001)
    made.close("stopped")
    assert [record.levelname for record in caplog.records if record.name == "root"] == ["WARNING"]
    assert "cannot be reached (ConnectionError: the store does not answer)" in caplog.text
    assert not (run / ".mirror").exists()


def test_the_workdir_of_another_config_is_not_replaced(tmp_path):
    config = tiny_run.get_config()
    with Workdir(tmp_path / "here/one", config, mirror=str(tmp_path / "copies")):
        pass
    config.seed = 1
    with (
        pytest.raises(UserError, match="copies/one holds a run with another config:\n  seed: there 0, here 1"),
        Workdir(tmp_path / "there/one", config, mirror=str(tmp_path / "copies")),
    ):
        pass
    with Workdir(tmp_path / "there/one", config, overwrite=True, mirror=str(tmp_path / "copies")):
        pass
    assert Mirror(str(tmp_path / "copies"), tmp_path / "there/one").saved_config()["seed"] == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("gg://bucket/runs", "fsspec does not know gg://"),
        (
            "gs://bucket/runs",
            r"needs a package that is not installed. Install it with\n  pip install 'rose-jax\[gcs\]'",
        ),
    ],
)
def test_a_url_that_means_nothing_here(url, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserError, match=words):
        check_mirror(url)


def test_a_mirror_inside_the_workdir(tmp_path):
    with pytest.raises(UserError, match="would lie in the workdir"):
        check_mirror(str(tmp_path), tmp_path / "one")
    check_mirror(str(tmp_path / "copies"), tmp_path / "one")


def test_a_whole_run_and_its_mirror(finished, tmp_path, monkeypatch):
    """The command line: a finished run is copied, and its lost workdir costs no training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text("from tiny_run import get_config")
    shutil.copytree(finished[0], tmp_path / "runs/digits_cold5_seed0")
    command = ("--config", "tiny.py", "--mirror", "copies")
    call_main(*command)
    first = (tmp_path / "runs/digits_cold5_seed0/results.json").read_bytes()
    assert (tmp_path / "copies/digits_cold5_seed0/results.json").read_bytes() == first
    assert (tmp_path / "copies/digits_cold5_seed0/figures/curves.png").exists()
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr("rose_jax.run.trajectory.train_steps", None)
    monkeypatch.setattr("rose_jax.run.scoring.Scorer._run", None)
    call_main(*command)
    assert (
        json.loads((tmp_path / "runs/digits_cold5_seed0/results.json").read_text())["scores"]
        == finished[1]["scores"]
    )


@pytest.mark.slow
def test_five_kills_and_five_lost_workdirs(tmp_path, monkeypatch, capsys):
    """A store that fails now and then is all that is left of the run each time."""
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")]))
    options = ["--kills", "5", "--mirror", f"flaky://{tmp_path}/copies", "--folder", str(tmp_path)]
    run = ["--config.train.checkpoint_every=2", "--config.train.first.epochs=8", "--methods", "base,rose"]
    assert script.main([*options, "--config", flaky_store.__file__, "--", *run]) == 0
    said = capsys.readouterr().out
    assert said.count("exit code -9") == 5
    assert "5 x SIGKILL" in said
    assert "NOT identical" not in said
