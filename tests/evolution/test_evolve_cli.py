"""python -m rose_jax.evolve: a file of arrays in, a file of predictions out, one clear line if it cannot be."""

import zipfile

import numpy as np
import pytest
from evolution_reference import features

from rose_jax import evolve_features
from rose_jax.evolve.__main__ import main


@pytest.fixture
def arrays():
    prototypes, moves, projector, z_old, z_new, labels = features(np.random.default_rng(50), 128)
    return {
        "z_old": z_old,
        "z_new": z_new,
        "old_prototypes": prototypes[moves],
        "new_prototypes": prototypes[~moves],
        "projector": projector,
        "labels": labels,
    }


def test_writes_predictions_and_prints_accuracy(arrays, tmp_path, capsys):
    source, out = tmp_path / "features.npz", tmp_path / "predictions.npz"
    arrays["z_new"][3, 3] = np.inf
    np.savez(source, **arrays)
    assert main([str(source), "--out", str(out), "--capacity", "70", "--ridge", "1e-4"]) == 0
    labels = arrays.pop("labels")
    expected = evolve_features(**arrays, capacity=70, ridge=1e-4)
    with np.load(out) as found:
        np.testing.assert_array_equal(found["predictions"], expected.predictions)
        np.testing.assert_array_equal(found["prototypes"], expected.prototypes)
    printed = capsys.readouterr().out
    right = expected.predictions == labels
    average = 100 * np.mean([right[labels == c].mean() for c in range(12)])
    assert f"evolved   class average {average:.2f}, images {100 * right.mean():.2f}" in printed
    table = np.concatenate([arrays["old_prototypes"], arrays["new_prototypes"]])
    for name, w in (("unmoved", np.eye(24)), ("projector", arrays["projector"])):
        moved = np.where(np.arange(12)[:, None] < 8, table @ w, table)
        cosines = arrays["z_new"] @ (moved / np.linalg.norm(moved, axis=1, keepdims=True)).T
        hits = np.where(np.isfinite(cosines).all(1), cosines.argmax(1), -1) == labels
        assert f"{name:10}class average" in printed
        assert f"images {100 * hits.mean():.2f}" in printed
    assert "128 images, 8 old and 4 new classes" in printed
    assert "1 rows with NaN or Inf" in printed
    assert set(tmp_path.iterdir()) == {source, out}  # no temporary file is left behind


def test_without_labels_it_says_how_many_changed(arrays, tmp_path, capsys):
    source, out = tmp_path / "features.npz", tmp_path / "predictions.npz"
    del arrays["labels"]
    np.savez(source, **arrays)
    flags = ["--out", str(out), "--capacity", "70", "--ridge", "1e-4", "--metric", "queue"]
    assert main([str(source), *flags]) == 0
    expected = evolve_features(**arrays, capacity=70, ridge=1e-4, metric="queue")
    with np.load(out) as found:
        np.testing.assert_array_equal(found["predictions"], expected.predictions)
    said = capsys.readouterr()
    assert "of the labels differ from unmoved prototypes'" in said.out
    assert "the other way round" not in said.err
    arrays["z_old"], arrays["z_new"] = arrays["z_new"], arrays["z_old"]
    np.savez(source, **arrays)
    assert main([str(source), *flags]) == 0
    assert "z_old and z_new fit better the other way round" in capsys.readouterr().err


def spoil_missing(arrays):
    del arrays["z_old"]


def spoil_object(arrays):
    arrays["projector"] = np.array([{}], dtype=object)


def spoil_shape(arrays):
    arrays["z_new"] = arrays["z_new"][:-1]


def spoil_labels(arrays):
    arrays["labels"] = arrays["labels"] + 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_missing, "lacks z_old"),
        (spoil_object, "projector cannot be read"),
        (spoil_shape, "z_new (127, 24)"),
        (spoil_labels, "labels run from 1 to 12, expected 0 to 11"),
    ],
)
def test_bad_files_are_explained(arrays, tmp_path, capsys, spoil, message):
    spoil(arrays)
    source, out = tmp_path / "features.npz", tmp_path / "out.npz"
    np.savez(source, **arrays)
    assert main([str(source), "--out", str(out), "--capacity", "70", "--ridge", "1e-4"]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_what_is_no_npz(tmp_path, capsys):
    assert main([str(tmp_path / "absent.npz")]) == 2
    assert "No such file" in capsys.readouterr().err
    text = tmp_path / "text.npz"
    text.write_text("not arrays")
    assert main([str(text)]) == 2
    assert "is not an .npz file" in capsys.readouterr().err
    for name in ("features.pt", "features.pth"):
        (tmp_path / name).write_bytes(b"\x80\x02\x8a")  # a pickle, as torch.save wrote before 1.6
        assert main([str(tmp_path / name)]) == 2
        assert "was written by PyTorch" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "features", "w") as archive:  # as it writes today
        archive.writestr("features/data.pkl", b"")
    assert main([str(tmp_path / "features")]) == 2
    assert "was written by PyTorch (torch.save)" in capsys.readouterr().err
    np.save(tmp_path / "bare.npy", np.ones(3))
    assert main([str(tmp_path / "bare.npy")]) == 2
    assert "one bare array" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "words"),
    [(".", "--out . is a folder. Give the name of a file in it."), ("features.npz/x", "features.npz is a file")],
)
def test_a_place_that_cannot_be_written_is_told_before_the_work(arrays, tmp_path, capsys, monkeypatch, out, words):
    np.savez(tmp_path / "features.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rose_jax.evolve.__main__.evolve_features", None)
    assert main(["features.npz", "--out", out]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["features.npz"]
