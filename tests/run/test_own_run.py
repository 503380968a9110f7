"""A folder of pictures from end to end: prepare, train, study, report, predict, export. Then .npz and TFDS the same way."""

import csv
import io
import json
import re

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from pictures import CLASSES, write_pictures
from support import call_main, unpainted

from rose_jax import experiment, export, predict, report, study
from rose_jax.data import sources
from rose_jax.data.prepare import command
from rose_jax.data.prepare.npz import png
from rose_jax.report.__main__ import main as report_main
from rose_jax.runtime.sharding import Layout
from rose_jax.study.__main__ import main as study_main

TINY = ("--config.model.encoder=tiny", "--config.model.width=2", "--config.evolution.capacity=64")
SETTING = (
    "--config",
    "configs/folder.py:smoke",
    *TINY,
    "--config.scenario.tasks=5",
    "--config.test.batch_size=32",
)


@pytest.fixture(scope="module", autouse=True)
def on_one_device():
    layout = Layout(jax.devices()[:1])
    with pytest.MonkeyPatch.context() as patch, unpainted():
        patch.setattr(experiment, "Layout", lambda: layout)
        patch.setattr("rose_jax.inference.model.Layout", lambda: layout)
        patch.setattr("rose_jax.study.__main__.cache_compilations", lambda workdir: None)
        patch.setattr(predict, "cache_compilations", lambda workdir: None)
        patch.setattr(study.cost, "EVERY", (1, 4))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder of pictures, data folder, workdir) after preparation and training."""
    base = tmp_path_factory.mktemp("own")
    pictures, data, run = write_pictures(base / "birds"), base / "data", base / "run"
    prepared = ["folder", "--from", str(pictures), "--name", "pets", "--size", "8", "--data_dir", str(data)]
    assert command.main([*prepared, "--test", "0.25"]) == 0
    given = ("--methods", "base,rose", f"--config.data.dir={data}", "--config.data.name=pets")
    call_main(*SETTING, *given, "--workdir", run)
    return pictures, data, run


def test_training_says_what_it_trained_on(trained):
    results = json.loads((trained[2] / "results.json").read_text())
    setting = results["setting"]
    assert (setting["dataset"], setting["label"], setting["split"]) == ("pets", "own", "custom")
    assert setting["class_names"] == list(CLASSES)
    assert [len(classes) for classes in setting["task_classes"]] == [3, 3, 2, 2, 2]  # ragged
    images = sources.load("folder", str(trained[1]), own_name="pets").train.images / 255
    np.testing.assert_allclose(setting["images"]["mean"], images.mean((0, 1, 2)))
    np.testing.assert_allclose(setting["images"]["std"], images.std((0, 1, 2)))
    assert len(results["scores"]["rose"]["per_class"]) == 12
    page = (trained[2] / "report.html").read_text()
    assert "pets, cold start: 12 classes in tasks of 3, 3, 2, 2, 2." in page
    assert CLASSES[7] in page
    assert "not the paper's full setting" not in page


def test_studies_and_reports(trained, finished, tmp_path, capsys):
    _, _, run = trained
    assert study_main(["budget", "--workdir", str(run), "--draws", "1"]) == 0
    assert json.loads((run / "studies" / "budget.json").read_text())["inputs"]["dataset"] == "pets"
    out = tmp_path / "both"
    assert report_main([str(run), str(finished[0]), "--latex", "--out", str(out)]) == 0
    names = report.compare.distinct_names(report.compare.group([report.load(w) for w in (run, finished[0])]))
    assert names == ["pets cold 5", "digits cold 3"]
    assert re.search(r"method & pets cold 5 & digits cold 3 \\\\", (out / "report.tex").read_text())
    assert {path.name for path in (out / "figures").iterdir()} == {"curves.png", "curves.pdf", "curves.svg"}


def test_predict_and_export(trained, tmp_path):
    pictures, _, run = trained
    out = tmp_path / "labels.csv"
    for extra in ([], ["--evolve"]):
        assert predict.main(["--workdir", str(run), str(pictures), "--out", str(out), *extra]) == 0
        with out.open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 96
        assert {row["class"] for row in rows} <= set(CLASSES)
    assert export.main(["--workdir", str(run), "--out", str(tmp_path / "encoder.safetensors")]) == 0


def write_tfds(root, dataset):
    """The same images as a set that TFDS has prepared."""
    place = root / "birds" / "1.0.0"
    place.mkdir(parents=True)
    features = {
        "image": tfds.features.Image(shape=(8, 8, 3)),
        "label": tfds.features.ClassLabel(names=list(CLASSES)),
    }
    identity = tfds.core.dataset_info.DatasetIdentity("birds", tfds.core.Version("1.0.0"), str(place), "")
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=64, file_format="array_record")
    writer.initialize_splits(["train", "test"])
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        pairs = zip(split.images, split.labels, strict=True)
        files = [{"image": io.BytesIO(png(image)), "label": int(label)} for image, label in pairs]
        writer.add_examples({name: files})
    writer.close_all()


@pytest.mark.parametrize("kind", ["npz", "tfds"])
def test_other_doors_to_the_same_room(trained, tmp_path, kind):
    """The same images, so that every score is the same."""
    dataset = sources.load("folder", str(trained[1]), own_name="pets")
    if kind == "npz":
        x = {f"x_{name}": split.images for name, split in (("train", dataset.train), ("test", dataset.test))}
        y = {f"y_{name}": split.labels for name, split in (("train", dataset.train), ("test", dataset.test))}
        np.savez(tmp_path / "birds.npz", **x, **y, class_names=np.array(CLASSES))
        given = f"npz:{tmp_path}/birds.npz"
    else:
        write_tfds(tmp_path, dataset)
        given = "tfds:birds"
    run = tmp_path / "run"
    methods = ("--methods", "base,rose")
    call_main(
        *SETTING, *methods, "--workdir", run, f"--config.data.dir={tmp_path}", f"--config.data.dataset={given}"
    )
    results, expected = (json.loads((w / "results.json").read_text()) for w in (run, trained[2]))
    assert results["setting"]["dataset"] == "birds"
    for row in ("base", "rose"):
        assert results["scores"][row]["per_class"] == expected["scores"][row]["per_class"]
