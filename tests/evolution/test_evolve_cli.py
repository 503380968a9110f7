"""python -m rose_jax.evolve: a file of arrays in, a file of predictions out, one clear line if it cannot be."""

import numpy as np
import pytest
from evolution_reference import features

from rose_jax.evolution import evolve_features
from rose_jax.evolve import main


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
    assert f"class average {average:.2f}, images {100 * right.mean():.2f}" in printed
    assert "128 images, 8 old and 4 new classes" in printed
    assert "1 rows with NaN or Inf" in printed
    assert set(tmp_path.iterdir()) == {source, out}  # no temporary file is left behind


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
    monkeypatch.setattr("rose_jax.evolve.evolve_features", None)
    assert main(["features.npz", "--out", out]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["features.npz"]
