"""Sets that are not built in: a folder of pictures, an .npz file, a set that TFDS has prepared."""

import io

import numpy as np
import pytest
import tensorflow_datasets as tfds
from pictures import CLASSES, center, write_pictures
from PIL import ExifTags, Image

from rose_jax.data import measure, own, sources
from rose_jax.data.prepare import command, folder
from rose_jax.data.prepare.npz import png
from rose_jax.errors import UserError


def prepare(*arguments):
    return command.main([str(argument) for argument in ("folder", *arguments)])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures") / "my pets", per_class=5)


def test_a_folder_of_pictures(pictures, tmp_path, capsys):
    assert prepare("--from", pictures, "--size", 16, "--test", 0.4, "--data_dir", tmp_path) == 0
    said = capsys.readouterr().out
    assert "36 training and 24 test images of 12 classes, 16 pixels a side, which stay in memory" in said
    assert f"--config.data.name=my_pets --config.data.dir={tmp_path}" in said
    dataset = sources.load("folder", str(tmp_path), own_name="my_pets")
    assert dataset.class_names == CLASSES
    assert dataset.train.images.shape == (36, 16, 16, 3)
    assert np.bincount(dataset.train.labels).tolist() == [3] * 12
    assert np.bincount(dataset.test.labels).tolist() == [2] * 12
    # Every picture is in one split, once, as Pillow scales its shorter side.
    expected = set()
    for file in pictures.rglob("*.*"):
        image = Image.open(file).convert("RGB")
        short = min(image.size)
        size = tuple(16 if side == short else round(side * 16 / short) for side in image.size)
        expected.add(center(np.asarray(image.resize(size, Image.Resampling.BILINEAR)), 16).tobytes())
    both = np.concatenate([dataset.train.images, dataset.test.images])
    assert {image.tobytes() for image in both} == expected
    assert len(expected) == 60
    pixels = dataset.train.images.reshape(-1, 3) / 255
    np.testing.assert_allclose(dataset.moments, [pixels.mean(0), pixels.std(0)], rtol=1e-9)
    assert dataset.identity.startswith("own my_pets, 36 + 24 images of 16 pixels a side (")
    smaller = sources.load("folder", str(tmp_path), own_name="my_pets", size=8)
    assert smaller.train.images.shape == (36, 8, 8, 3)
    assert smaller.identity != dataset.identity
    with pytest.raises(UserError, match="config.data.size is 32, but .* was prepared with 16"):
        sources.load("folder", str(tmp_path), own_name="my_pets", size=32)
    assert prepare("--from", pictures, "--data_dir", tmp_path) == 2
    assert "There is a set 'my_pets'" in capsys.readouterr().err


def test_a_large_set_is_streamed(pictures, tmp_path, monkeypatch, capsys):
    """Pictures keep their resolution up to twice the size, and are cropped when they are read."""
    monkeypatch.setattr(own, "RESIDENT_BYTES", 1000)
    assert prepare("--from", pictures, "--name", "large", "--size", 16, "--data_dir", tmp_path) == 0
    assert "which are decoded while training" in capsys.readouterr().out
    dataset = sources.load("folder", str(tmp_path), own_name="large")
    assert dataset.streamed
    sizes = {Image.open(io.BytesIO(dataset.train.encoded(i))).size for i in range(len(dataset.train))}
    assert max(min(size) for size in sizes) == 32
    assert min(min(size) for size in sizes) < 32
    assert dataset.train.name(0).startswith(CLASSES[0])
    assert np.all((dataset.moments > 0) & (dataset.moments < 1))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file", "--data_dir: {}/file is a file, not a folder"),
        ("file/inside", "--data_dir: {}/file is a file, not a folder"),
        ("/proc/nowhere", "--data_dir: cannot write to /proc"),
        ("gs://bucket", "--data_dir gs:/bucket is an address"),
    ],
)
def test_a_place_that_cannot_be_written(pictures, tmp_path, monkeypatch, capsys, place, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(folder, "contents", None)  # not even looked at
    data = place if ":" in place or place.startswith("/") else tmp_path / place
    assert prepare("--from", pictures, "--data_dir", data) == 2
    assert words.format(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_train_and_test_folders_are_kept(tmp_path, test_name):
    write_pictures(tmp_path / "set/train", 3, ("cat", "dog"))
    write_pictures(tmp_path / f"set/{test_name}", 2, ("cat", "dog"), first=3)
    found = folder.contents(tmp_path / "set", 8, 0.2, 2**30)
    assert found.class_names == ("cat", "dog")
    assert found.splits["train"].labels.tolist() == [0] * 3 + [1] * 3
    assert [name.split("/")[0] for name in found.splits["test"].names] == [test_name] * 4


def test_a_second_folder_of_test_images_is_left_out_and_said(tmp_path, caplog):
    for split in ("train", "test", "val"):
        write_pictures(tmp_path / split, 2, ("cat", "dog"))
    found = folder.contents(tmp_path, 8, 0.2, 2**30)
    assert {name.split("/")[0] for name in found.splits["test"].names} == {"test"}
    assert f"{tmp_path}/val is left out: test images are those in {tmp_path}/test." in caplog.messages


def test_a_class_may_be_called_train(tmp_path):
    write_pictures(tmp_path, 2, ("train", "plane"))
    assert folder.contents(tmp_path, 8, 0.5, 2**30).class_names == ("plane", "train")


def test_a_picture_is_turned_as_the_camera_was_held(tmp_path):
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[:, :15] = 255
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be turned clockwise by 90 degrees
    write_pictures(tmp_path, 1, ("b",))
    (tmp_path / "a").mkdir()
    for i in range(2):
        Image.fromarray(pixels).save(tmp_path / f"a/{i}.jpg", exif=exif, quality=100)
        Image.fromarray(pixels).save(tmp_path / f"b/{i}.jpg", quality=100)
    found = folder.contents(tmp_path, 8, 0.5, 2**30).splits["train"]
    image = np.asarray(Image.open(io.BytesIO(found.encoded(0)))).astype(int)
    assert image[0].min() > 200  # the left half is on top
    assert image[-1].max() < 50


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "empty").mkdir(), "empty holds no image that Pillow reads"),
        (
            lambda f: (f / "cat/0.png").write_bytes(b"no image"),
            "0.png does not decode as an image (of no kind that Pillow reads)",
        ),
        (lambda f: [p.unlink() for p in (f / "dog").glob("*.JPG")], "dog holds a single image"),
    ],
)
def test_a_folder_that_will_not_do(tmp_path, capsys, spoil, words):
    source = write_pictures(tmp_path / "set", 3, ("cat", "dog"))
    spoil(source)
    assert prepare("--from", source, "--data_dir", tmp_path / "data") == 2
    assert words in capsys.readouterr().err
    assert not list((tmp_path / "data").glob("own_*"))


def test_partial_leaves_out_what_does_not_decode(tmp_path, caplog):
    source = write_pictures(tmp_path, 3, ("cat", "dog"))
    (source / "cat/0.png").write_bytes(b"no image")
    found = folder.contents(source, 8, 0.5, 2**30, skip_damaged=True)
    assert sum(len(split.labels) for split in found.splits.values()) == 5
    assert "Left out:" in caplog.text


def gray_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (20, 9, 9), dtype=np.uint8),
        "y_train": np.arange(20) % 4 * 10,
        "x_test": rng.integers(0, 256, (8, 9, 9), dtype=np.uint8),
        "y_test": np.arange(8)[:, None] % 4 * 10,
    } | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return arrays


def test_an_npz_file(tmp_path):
    arrays = gray_npz(tmp_path / "mine.npz")
    dataset = sources.load(f"npz:{tmp_path}/mine.npz", str(tmp_path))
    np.testing.assert_array_equal(dataset.train.images, np.stack([arrays["x_train"]] * 3, -1))
    assert dataset.test.labels.tolist() == [0, 1, 2, 3] * 2
    assert (dataset.name, dataset.class_names) == ("mine", ("0", "10", "20", "30"))
    gray = arrays["x_train"] / 255
    np.testing.assert_allclose(measure.moments(dataset.train, 9), [[gray.mean()] * 3, [gray.std()] * 3])
    assert prepare("--from", tmp_path / "mine.npz", "--size", 12, "--data_dir", tmp_path) == 0
    prepared = sources.load("folder", str(tmp_path), own_name="mine")
    assert prepared.test.images.shape == (8, 12, 12, 3)
    assert prepared.class_names == dataset.class_names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": None}, "lacks y_test; it has x_train, y_train, x_test"),
        ({"x_train": np.zeros((20, 9, 9))}, r"x_train is float64 \[20, 9, 9\]; it must be uint8"),
        ({"y_train": np.arange(3)}, "20 images in x_train, 3 labels beside"),
        ({"x_test": np.zeros((8, 9, 5), np.uint8)}, "x_test has images of 5x9 pixels"),
        ({"class_names": np.array(["a", "b"])}, "labels must be 0..1, positions in class_names"),
        ({"y_test": np.zeros(8, int)}, "no test image of 3 of the 4 classes"),
    ],
)
def test_an_npz_file_that_will_not_do(tmp_path, changes, words):
    gray_npz(tmp_path / "mine.npz", **changes)
    with pytest.raises(UserError, match=words):
        sources.load(f"npz:{tmp_path}/mine.npz", str(tmp_path))


def write_tfds(root, splits=("train", "validation"), features=None):
    """A set as a builder of TFDS leaves it, with names of its own for image and label, and no common size."""
    place = root / "birds/small/1.2.0"
    place.mkdir(parents=True)
    features = features or {
        "picture": tfds.features.Image(shape=(None, None, 3)),
        "species": tfds.features.ClassLabel(names=["heron", "stork"]),
    }
    identity = tfds.core.dataset_info.DatasetIdentity(
        "birds", tfds.core.Version("1.2.0"), str(place), "", config_name="small"
    )
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=4, file_format="array_record")
    writer.initialize_splits(list(splits))
    if "picture" in features:
        for split in splits:
            images = [io.BytesIO(png(np.full((12, 20, 3), 50 * label + 10, np.uint8))) for label in (0, 1, 0)]
            writer.add_examples({split: [{"picture": im, "species": i % 2} for i, im in enumerate(images)]})
    writer.close_all()
    return place


def test_a_set_that_tfds_has_prepared(tmp_path):
    write_tfds(tmp_path)
    dataset = sources.load("tfds:birds/small", str(tmp_path), size=8)
    assert dataset.class_names == ("heron", "stork")
    assert dataset.train.labels.tolist() == [0, 1, 0]
    assert dataset.test.images[1].tolist() == np.full((8, 8, 3), 60).tolist()
    assert sources.load("tfds:birds/small:1.2.0", str(tmp_path)).image_size == own.DEFAULT_SIZE
    assert dataset.name == "birds/small"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"splits": ("train",)}, "has the splits .'train'.; needed are train, and test or validation"),
        (
            {"features": {"text": tfds.features.Text()}},
            "is no image classification set: of its features .'text'., 0 are a Image",
        ),
    ],
)
def test_a_tfds_set_that_will_not_do(tmp_path, options, words):
    write_tfds(tmp_path, **options)
    with pytest.raises(UserError, match=words):
        sources.load("tfds:birds/small", str(tmp_path))


@pytest.mark.parametrize(
    ("dataset", "keys", "words"),
    [
        ("folder", {}, "Give --config.data.name, the name of your images. Prepared in .*: none"),
        ("folder", {"own_name": "pets"}, "There is no set 'pets' in"),
        ("folder", {"own_name": "../pets"}, "is no name for a set"),
        ("tfds:mnist", {}, "TFDS has not prepared mnist"),
        ("npz:absent.npz", {}, "There is no file"),
        ("npz:absent.npz", {"size": 8}, "config.data.size does not apply to npz"),
        ("tfds:mnist", {"own_name": "pets"}, "config.data.name is for config.data.dataset=folder"),
        ("digits", {"size": 8}, "config.data.size is for images of your own"),
    ],
)
def test_what_is_not_there(tmp_path, dataset, keys, words):
    with pytest.raises(UserError, match=words):
        sources.load(dataset, str(tmp_path), **keys)
