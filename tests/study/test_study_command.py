"""The command: names, workdirs, what a run cannot support; and the files that keep features."""

import fcntl
import io
import shutil

import jax
import numpy as np
import pytest

from rose_jax.run.features import Features
from rose_jax.runtime import hosts
from rose_jax.runtime.progress import Progress
from rose_jax.study import STUDIES
from rose_jax.study.__main__ import chosen, main
from rose_jax.study.bank import Bank, LightSnapshot


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("capcity", "Unknown study 'capcity'. Did you mean 'capacity'?"),
        ("drift,samles", "Unknown study 'samles'. Did you mean 'samples'?"),
        (",", "No study to run. Known: samples, unbalanced"),
    ],
)
def test_bad_names_are_one_error(finished, capsys, names, message):
    assert main([names, "--workdir", str(finished[0])]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert message in errors[0]


def test_a_folder_without_a_run_is_one_error(tmp_path, capsys):
    assert main(["all", "--workdir", str(tmp_path)]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert f"No {tmp_path}/results.json" in error


def test_pruned_checkpoints_stop_only_the_studies_that_need_them(finished, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    shutil.rmtree(workdir / "checkpoints" / "base" / "stage_001")
    assert main(["eliminate", "--workdir", str(workdir)]) == 2
    error = capsys.readouterr().err
    assert "eliminate: not possible here" in error
    assert "no usable snapshot of task 2" in error
    assert main(["eliminate,drift", "--workdir", str(workdir)]) == 0  # drift finds numbers in results.json as well
    assert [path.name for path in (workdir / "studies").glob("*.json")] == ["drift.json"]


def test_too_few_images_to_deal(finished, tmp_path, capsys, monkeypatch):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    monkeypatch.setattr("rose_jax.study.bench.Bench.images_per_class", lambda self: np.array([2]))
    assert main(["distinct", "--workdir", str(workdir)]) == 2
    assert "a class has 2 test images, fewer than the 3 stages" in capsys.readouterr().err


def test_all_leaves_out_what_takes_longest():
    assert chosen("all") == [name for name in STUDIES if name not in ("adaptation", "metric")]
    assert chosen("all", thorough=True) == chosen("all,adaptation,metric") == list(STUDIES)
    assert chosen("metric") == ["metric"]


def test_features_are_kept_once_and_read_back(subject, monkeypatch):
    bench = subject.bench()
    stream = bench.own_streams[1]
    first = bench.bank.test(0, stream)
    again = Bank(bench.trajectory, bench.bank.folder)
    monkeypatch.setattr(Features, "encode", None)  # calling it would fail
    np.testing.assert_array_equal(again.test(0, stream).values, first.values)
    assert len(list(bench.bank.folder.glob("base_k00_test_*.npz"))) == 1


def test_the_file_of_features_follows_encoder_and_images(subject, tmp_path, monkeypatch):
    bench = subject.bench()
    rows = bench.bank._test_rows
    here = Bank(bench.trajectory, tmp_path)
    path = here.path(1, "test", "test", rows)
    assert Bank(bench.trajectory, tmp_path).path(1, "test", "test", rows) == path
    assert here.path(2, "test", "test", rows).name.split("_")[-1] != path.name.split("_")[-1]

    snapshot = bench.trajectory[1]
    retrained = jax.tree.map(lambda leaf: leaf * (1 + 1e-6), snapshot.variables)
    other = Bank(bench.trajectory, tmp_path)
    other.snapshots[1] = LightSnapshot({1: snapshot._replace(variables=retrained)}, 1)
    assert other.path(1, "test", "test", rows) != path

    split = bench.images.splits["test"]
    images = np.array(split.images)
    images[rows[0]] ^= 1
    monkeypatch.setitem(bench.images.splits, "test", type(split)(images, split.labels))
    assert Bank(bench.trajectory, tmp_path).path(1, "test", "test", rows) != path
    path.touch()
    here.test(1, rows)  # an empty file is damaged: extracted again, and nothing stale stays
    assert [p.name for p in tmp_path.glob("*.npz")] == [path.name]


def test_every_study_names_what_it_stands_beside():
    from rose_jax.report import paper

    tables = {cell.table for cell in paper.cells()}
    for study in STUDIES.values():
        assert study.paper in tables or study.paper.startswith("fig:") or study.paper in ("", ALPHA)


ALPHA = "supplement, implementation details"


def test_a_preempted_study_stops_between_stages(finished, tmp_path, capsys, monkeypatch):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    first = workdir / "studies" / "unbalanced.json"
    monkeypatch.setattr(hosts.Preemption, "asked", lambda self: first.exists())
    command = ["unbalanced,distinct", "--draws", "1", "--workdir", str(workdir)]
    assert main(command) == hosts.PREEMPTED_EXIT_CODE
    assert "Stopped" in capsys.readouterr().err
    assert [path.name for path in (workdir / "studies").glob("*.json")] == ["unbalanced.json"]


def test_a_locked_workdir_is_a_reason_for_each_study(finished, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    with (workdir / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert main(["eliminate,drift", "--workdir", str(workdir)]) == 2
    error = capsys.readouterr().err
    for name in ("eliminate", "drift"):
        assert f"{name}: not possible here: Another run is using the workdir" in error


def test_progress_without_a_terminal_is_a_line_now_and_then():
    stream, now = io.StringIO(), iter(range(0, 1000, 20))
    progress = Progress(stream, clock=lambda: next(now))
    for done in range(1, 5):
        progress.count("capacity", done, 4, seconds=2.0)
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["capacity  2/4  ETA 0:00:04", "capacity  4/4  ETA 0:00:00"]
