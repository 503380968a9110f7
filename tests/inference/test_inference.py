"""A finished run in use: the run's own labels again, states that go on, readers that disturb nobody."""

import csv
import fcntl
import shutil

import jax
import numpy as np
import pytest
from support import snapshot_arrays

import rose_jax
from rose_jax import inference, predict
from rose_jax.errors import UserError


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


@pytest.fixture
def on_one_device(used, monkeypatch):
    """The command line loads the model that the tests share."""

    def load(workdir, row, stage, data_dir=None):
        return rose_jax.load(workdir, row, stage, data_dir=data_dir, layout=used.model.layout)

    monkeypatch.setattr(predict, "load", load)
    monkeypatch.setattr(predict, "cache_compilations", lambda workdir: None)


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_evolving_on_the_run_s_own_stream_is_its_rose_row(used, on_one_device, tmp_path):
    """Label by label, from image files: the same start, keys, order and memory as in the run."""
    before = contents(used.workdir)
    out = tmp_path / "labels.csv"
    assert predict.main(["--workdir", str(used.workdir), str(used.folder), "--evolve", "--out", str(out)]) == 0
    rows = read_csv(out)
    assert [row["class"] for row in rows] == used.names
    assert [row["image"] for row in rows] == [str(path) for path in sorted(used.folder.iterdir())]
    accuracies = [np.mean(used.predictions[used.truth == c] == c) for c in range(10)]
    assert 100 * np.mean(accuracies) == pytest.approx(used.results["scores"]["rose"]["last"])
    assert contents(used.workdir) == before  # reading has changed nothing


def test_a_saved_state_goes_on(used, on_one_device, tmp_path):
    files, state = sorted(used.folder.iterdir()), tmp_path / "state.npz"
    labels = []
    for part in (files[:50], files[50:180], files[180:]):  # no multiples of the batch
        out = tmp_path / "labels.csv"
        options = ["--evolve", "--state", str(state), "--out", str(out)]
        assert predict.main(["--workdir", str(used.workdir), *map(str, part), *options]) == 0
        labels += [row["class"] for row in read_csv(out)]
    assert labels == used.names
    with pytest.raises(UserError, match="belongs to another model: stage 2, not 1"):
        rose_jax.load(used.workdir, stage=1, layout=used.model.layout).evolve(state)


@pytest.mark.parametrize("stop", [OSError("no space"), KeyboardInterrupt()])
def test_a_state_does_not_move_on_without_its_labels(used, on_one_device, tmp_path, monkeypatch, capsys, stop):
    """Given again, its images would count twice."""

    def fail(*_):
        raise stop

    state, files = tmp_path / "state.npz", sorted(used.folder.iterdir())
    command = ["--workdir", str(used.workdir), "--evolve", "--state", str(state)]
    assert predict.main([*command, *map(str, files[:5])]) == 0
    before = state.read_bytes()
    monkeypatch.setattr(predict, "write_text", fail)
    code = predict.main([*command, *map(str, files[5:9]), "--out", str(tmp_path / "labels.csv")])
    assert code == (2 if isinstance(stop, OSError) else 130)
    assert state.read_bytes() == before
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith(("error: no space", "Interrupted; nothing was written"))
    )


def test_images_one_by_one_and_what_they_move(used):
    evolving = used.model.evolve()
    start = evolving.prototypes
    found = [evolving.predict(used.images[i : i + 1]).labels[0] for i in range(20)]
    assert found == used.predictions[:20].tolist()
    moved = np.abs(evolving.prototypes - start).max(1)
    assert np.all(moved[:7] > 0)
    assert np.all(moved[7:] == 0)  # the new task's


def test_predict_is_the_nearest_prototype_that_the_stream_left(used):
    model = used.model
    (saved,) = (used.workdir / "scores").glob("rose_*_stage_002.npz")
    prototypes = np.load(saved)["mean"].astype(np.float64)
    np.testing.assert_array_equal(model.prototypes, prototypes.astype(np.float32))
    features = model.encode(used.images[:70]).astype(np.float64)
    lengths = np.linalg.norm(features, axis=1)[:, None] * np.linalg.norm(prototypes, axis=1)[None]
    cosines = features @ prototypes.T / np.maximum(lengths, 1e-30)
    found = model.predict(used.images[:70])
    np.testing.assert_allclose(found.scores, cosines, atol=1e-5)
    np.testing.assert_array_equal(found.labels, cosines.argmax(1))
    assert found.names == [model.class_names[k] for k in found.labels]


def test_earlier_stages_and_other_rows(used, tmp_path):
    first = rose_jax.load(used.workdir, "base", stage=0, layout=used.model.layout)
    assert len(first.class_names) == 4
    assert first.class_names == used.model.class_names[:4]
    (saved,) = (used.workdir / "scores").glob("base_*_stage_000.npz")
    known = np.isin(used.truth, range(4))
    labels = first.predict(used.images[known]).labels
    # The same test images in another order: as many of each label.
    assert np.bincount(labels, minlength=4).tolist() == np.bincount(np.load(saved)["predictions"]).tolist()
    with pytest.raises(UserError, match="Nothing evolves: the row 'base' does not change"):
        first.evolve()
    with pytest.raises(UserError, match=r"Nothing evolves: the row 'rose' begins at stage 1 \(after task 2\)"):
        rose_jax.load(used.workdir, stage=0, layout=used.model.layout).evolve()


def test_the_data_is_not_needed(used, one_device, monkeypatch):
    def absent(*_, **__):
        raise AssertionError("the data was opened")

    monkeypatch.setattr("rose_jax.data.sources.load", absent)
    model = rose_jax.load(used.workdir, layout=one_device)
    assert model.evolve().predict(used.images[:3]).labels.tolist() == used.predictions[:3].tolist()


def test_a_run_that_is_training_can_be_read(used, one_device, tmp_path):
    """Its lock is held, results.json is not there yet, and the last task's snapshot is being written."""
    run = tmp_path / "run"
    shutil.copytree(used.workdir, run)
    (run / "results.json").unlink()
    for path in [*(run / "scores").glob("*_stage_002.npz"), run / "checkpoints/base/stage_002.manifest.json"]:
        path.unlink()
    writing = run / "checkpoints/base/stage_002.orbax-checkpoint-tmp-1"
    (run / "checkpoints/base/stage_002").rename(writing)
    before = contents(run)
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = rose_jax.load(run, layout=one_device)
    assert (model.stage, len(model.class_names)) == (1, 7)
    assert len(model.predict(used.images[:5]).names) == 5
    assert contents(run) == before


def test_what_can_be_read(used, tmp_path):
    model = used.model
    large = np.repeat(np.repeat(used.images[:2], 3, 1), 3, 2)  # 24 x 24
    np.testing.assert_allclose(model.read(large), used.images[:2], atol=90)
    files = sorted(used.folder.iterdir())[:2]
    np.testing.assert_array_equal(model.read(files), used.images[:2])
    assert model.predict([]).names == []
    with pytest.raises(UserError, match=r"Images are float64 \[1, 8, 8, 3\]; they must be uint8"):
        model.read(np.zeros((1, 8, 8, 3)))
    with pytest.raises(UserError, match="absent.png cannot be read: No such file"):
        model.read([tmp_path / "absent.png"])


def test_a_file_that_is_no_image_gets_no_label(used, on_one_device, tmp_path, capsys):
    (tmp_path / "a.png").write_bytes(b"no image")
    good = sorted(used.folder.iterdir())[0]
    assert predict.main(["--workdir", str(used.workdir), str(tmp_path), str(good), "--top", "2"]) == 0
    said = capsys.readouterr()
    header, bad, labelled = said.out.splitlines()
    assert header == "image,class_1,score_1,class_2,score_2"
    assert bad == f"{tmp_path}/a.png,,,,"
    name, first, second = labelled.split(",")[1], *map(float, labelled.split(",")[2::2])
    assert name in used.model.class_names
    assert first > second
    assert "no label:" in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--row", "lwf"], "has no encoders for the row 'lwf'"),
        (["--row", "gd_queue"], r"has not scored the row 'gd_queue' .*\(scored: base, gd, projector, rose\)"),
        (["--row", "roze"], "Unknown method 'roze'. Did you mean 'rose'"),
        (
            ["--stage", "3"],
            r"There is no stage 3: the row 'rose' has 0 \(after task 1\) to 2 \(after task 3\)",
        ),
        (["--out", "."], "--out . is a folder. Give the name of a file in it"),
        (["--features", "docs"], "--features docs is a folder"),
        (["--out", "README.md/labels.csv"], "--out: README.md is a file, not a folder"),
        (["--out", "gs://bucket/labels.csv"], r"--out gs:/bucket/labels.csv is an address \(gs:\), not a folder"),
        (["--state", "x.npz"], "--state is for --evolve"),
        (["absent"], "absent does not exist"),
    ],
)
def test_bad_requests(used, on_one_device, capsys, arguments, words):
    import re

    code = predict.main(["--workdir", str(used.workdir), str(used.folder), *arguments])
    assert code == 2
    assert re.search(words, capsys.readouterr().err)


def test_there_must_be_a_run(tmp_path):
    with pytest.raises(UserError, match="There is no run in .*: config.json is missing"):
        inference.load(tmp_path)


def test_snapshots_are_those_on_disk(used):
    arrays = snapshot_arrays(used.workdir / "checkpoints/base/stage_002")
    leaves = jax.tree_util.tree_leaves_with_path(used.model.snapshot.variables)
    for path, leaf in leaves:
        np.testing.assert_array_equal(arrays[f"['variables']{jax.tree_util.keystr(path)}"], leaf)
