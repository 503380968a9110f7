"""Preparation from tiny archives of the published layouts, whole, damaged, partial and interrupted."""

import io
import pickle
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from rose_jax.data import sources
from rose_jax.data.prepare import command as prepare
from rose_jax.data.prepare import imagenet100, tiny
from rose_jax.data.prepare.unpickle import load_arrays
from rose_jax.errors import UserError

CLASSES = [f"class {i:02d}" for i in range(100)]


def jpeg(size: tuple[int, int], seed: int, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


def cifar_split(n: int) -> tuple[np.ndarray, list[int]]:
    """Channel-major rows as published, and labels that visit every class."""
    data = np.random.default_rng(n).integers(0, 256, (n, 3072), dtype=np.uint8)
    return data, [(7 * i) % 100 for i in range(n)]


def cifar_tar(path: Path, sizes=(200, 100), **extra) -> Path:
    files = {"meta": {b"fine_label_names": [name.encode() for name in CLASSES]}}
    for name, n in zip(("train", "test"), sizes, strict=True):
        data, labels = cifar_split(n)
        files[name] = {b"data": data, b"fine_labels": labels, **extra}
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            # Python 2 wrote protocol 2, with bytes as strings; 3 is the lowest that keeps bytes in Python 3.
            raw = pickle.dumps(content, protocol=3)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return path


def tiny_zip(path: Path, monkeypatch, *, spoil: str = "", change: dict[str, bytes] | None = None) -> Path:
    """Three classes of four and two images, one of them gray, which is then what a complete copy has."""
    expected = {"train": (4, 4), "test": (2, 2)}
    monkeypatch.setitem(prepare.SETS, "tiny", prepare.SETS["tiny"]._replace(per_class=expected))
    monkeypatch.setitem(sources.KNOWN, "tiny", sources.KNOWN["tiny"]._replace(num_classes=3))
    wnids = ["n03", "n01", "n02"]  # published unsorted
    files = {"wnids.txt": "\n".join(wnids).encode()}
    annotations = []
    for c, wnid in enumerate(wnids):
        for k in range(4):
            mode = "L" if k == 0 else "RGB"
            files[f"train/{wnid}/images/{wnid}_{k}.JPEG"] = jpeg((64, 64), 10 * c + k, mode)
        for k in range(2):
            files[f"val/images/val_{2 * c + k}.JPEG"] = jpeg((64, 64), 100 + 10 * c + k)
            annotations.append(f"val_{2 * c + k}.JPEG\t{wnid}\t0\t0\t62\t62")
    files["val/val_annotations.txt"] = "\n".join(reversed(annotations)).encode()
    if spoil:
        files[spoil] = files[spoil][:300]
    files |= change or {}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return path


def test_cifar100_from_tar(tmp_path):
    source = cifar_tar(tmp_path / "cifar-100-python.tar.gz")
    done = prepare.prepare("cifar100", str(source), str(tmp_path / "data"), partial=True)
    assert "200 training and 100 test images of 100 classes" in done
    dataset = sources.load("cifar100", str(tmp_path / "data"))
    data, labels = cifar_split(200)
    assert dataset.class_names == tuple(CLASSES)
    assert dataset.train.labels.tolist() == labels
    row, column, channel = 5, 9, 2
    np.testing.assert_array_equal(
        dataset.train.images[:, row, column, channel], data[:, channel * 1024 + row * 32 + column]
    )


def test_cifar100_from_folder_gives_the_same(tmp_path):
    source = cifar_tar(tmp_path / "cifar-100-python.tar.gz")
    with tarfile.open(source) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    prepare.prepare("cifar100", str(source), str(tmp_path / "a"), partial=True)
    prepare.prepare("cifar100", str(tmp_path / "unpacked"), str(tmp_path / "b"), partial=True)
    a, b = (sources.load("cifar100", str(tmp_path / d)) for d in "ab")
    np.testing.assert_array_equal(a.test.images, b.test.images)


def test_wrong_counts_are_refused_unless_partial(tmp_path):
    source = cifar_tar(tmp_path / "cifar-100-python.tar.gz")
    with pytest.raises(UserError) as error:
        prepare.prepare("cifar100", str(source), str(tmp_path / "data"))
    message = str(error.value)
    assert "train: 100 of 100 classes do not have 500 images (e.g. 'class 00' has 2; 200 images in all)" in message
    assert "--partial" in message
    assert not (tmp_path / "data" / "rose_cifar100").exists()


def test_prepared_set_is_left_alone_unless_told(tmp_path):
    data_dir = str(tmp_path / "data")
    prepare.prepare("cifar100", str(cifar_tar(tmp_path / "a.tar.gz")), data_dir, partial=True)
    bigger = str(cifar_tar(tmp_path / "b.tar.gz", sizes=(300, 100)))
    assert "prepared already" in prepare.prepare("cifar100", bigger, data_dir, partial=True)
    assert len(sources.load("cifar100", data_dir).train) == 200
    prepare.prepare("cifar100", bigger, data_dir, partial=True, overwrite=True)
    assert len(sources.load("cifar100", data_dir).train) == 300
    assert {p.name for p in Path(data_dir).iterdir() if p.suffix != ".lock"} == {"rose_cifar100", "decoded"}


def test_unusable_stock_set_does_not_stand_in_the_way(tmp_path):
    """The message about a stock set that cannot be read advises to prepare ours: that must then work."""
    stock = tmp_path / "data" / "cifar100" / "3.0.2"
    stock.mkdir(parents=True)
    (stock / "dataset_info.json").write_text('{"name": "cifar100", "version": "3.0.2", "fileFormat": "tfrecord"}')
    tfds.features.FeaturesDict({"label": tfds.features.ClassLabel(num_classes=100)}).save_config(stock)
    with pytest.raises(UserError, match="is not stored as array_record, so only TensorFlow can read it"):
        sources.load("cifar100", str(tmp_path / "data"))
    prepare.prepare("cifar100", str(cifar_tar(tmp_path / "a.tar.gz")), str(tmp_path / "data"), partial=True)
    assert len(sources.load("cifar100", str(tmp_path / "data")).train) == 200


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_truncated_tar(tmp_path, kept):
    source = cifar_tar(tmp_path / "cifar-100-python.tar.gz")
    raw = source.read_bytes()
    source.write_bytes(raw[: int(kept * len(raw))])
    with pytest.raises(UserError, match=r"cifar-100-python.tar.gz is truncated or damaged .* Fetch it again"):
        prepare.prepare("cifar100", str(source), str(tmp_path / "data"))


def test_truncated_zip(tmp_path, monkeypatch):
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch)
    raw = source.read_bytes()
    source.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UserError, match=r"tiny-imagenet-200.zip is truncated or damaged .* Fetch it again"):
        prepare.prepare("tiny", str(source), str(tmp_path / "data"))


class _Program:
    def __reduce__(self):
        return (print, ("ran",))


def test_pickle_with_a_program_is_not_run(tmp_path, capsys):
    source = cifar_tar(tmp_path / "cifar-100-python.tar.gz", program=_Program())
    with pytest.raises(UserError, match=r"train: the pickle asks for builtins.print"):
        prepare.prepare("cifar100", str(source), str(tmp_path / "data"), partial=True)
    assert "ran" not in capsys.readouterr().out


def test_pickle_of_python_2_is_read():
    """Protocol 2 as Python 2 wrote it: str keys, an array by numpy.core.multiarray._reconstruct."""
    raw = (
        b"\x80\x02}q\x00U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85"
        b"U\x01b\x87Rq\x04(K\x01K\x03\x85cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x03\x01\x02\x03tbs."
    )
    np.testing.assert_array_equal(load_arrays(raw, "here")[b"data"], np.array([1, 2, 3], np.uint8))


def test_tiny_from_zip(tmp_path, monkeypatch):
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch)
    prepare.prepare("tiny", str(source), str(tmp_path / "data"))
    dataset = sources.load("tiny", str(tmp_path / "data"))
    assert dataset.class_names == ("n01", "n02", "n03")
    assert np.bincount(dataset.train.labels).tolist() == [4, 4, 4]
    # The annotations name val_5 first: the second image of the class listed third, n02.
    assert dataset.test.labels.tolist() == [1, 1, 0, 0, 2, 2]
    expected = np.asarray(Image.open(io.BytesIO(jpeg((64, 64), 121))).convert("RGB"))
    np.testing.assert_array_equal(dataset.test.images[0], expected)
    gray = np.asarray(Image.open(io.BytesIO(jpeg((64, 64), 10, "L"))))  # n01_0
    np.testing.assert_array_equal(dataset.train.images[0], np.stack([gray] * 3, axis=-1))


def test_undecodable_image_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    bad = "train/n02/images/n02_1.JPEG"
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch, spoil=bad)
    with pytest.raises(UserError, match=rf"tiny-imagenet-200.zip:tiny-imagenet-200/{bad} does not decode"):
        prepare.prepare("tiny", str(source), str(tmp_path / "data"))
    assert [p for p in (tmp_path / "data").rglob("*") if p.is_file() and p.suffix != ".lock"] == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("wnids.txt", b"n01\nn02\nn01\nn03", "wnids.txt names n01 more than once. Fetch the dataset again"),
        ("wnids.txt", b"n01\xff\xfe", "wnids.txt is not a text file .* Fetch the dataset again"),
        ("val/val_annotations.txt", bytes(range(128, 256)), "val_annotations.txt is not a text file .* Fetch"),
        (
            "train/n02/images/n02_1.JPEG",
            jpeg((32, 64), 1),
            "n02_1.JPEG is 32x64 pixels, expected 64x64. Replace that file",
        ),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path, monkeypatch, capsys, name, content, words):
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch, change={name: content})
    assert prepare.main(["tiny", "--from", str(source), "--data_dir", str(tmp_path / "data")]) == 2
    said = capsys.readouterr().err
    assert re.match(f"error: .*{words}", said)
    assert len(said.splitlines()) == 1
    assert sources.find_prepared("tiny", tmp_path / "data") is None


def test_a_prepared_set_with_one_wrong_image_can_be_prepared_again_as_advised(tmp_path, monkeypatch, capsys):
    bad = tiny_zip(tmp_path / "bad.zip", monkeypatch, change={"val/images/val_3.JPEG": jpeg((32, 32), 1)})
    with monkeypatch.context() as patch:  # by a version that did not look
        patch.setattr(tiny, "checked_image", lambda data, name, side: data)
        assert prepare.main(["tiny", "--from", str(bad), "--data_dir", str(tmp_path / "data")]) == 2
    said = capsys.readouterr().err
    assert "Image val/images/val_3.JPEG of test is 32x32 pixels, expected 64x64. Prepare it again" in said
    good = tiny_zip(tmp_path / "good.zip", monkeypatch)
    command = said.splitlines()[-1].split()
    assert command[:2] == ["scripts/prepare_data", "tiny"]
    assert command[-1] == "--overwrite"
    assert prepare.main([str(good) if word == "PATH" else word for word in command[1:]]) == 0
    assert len(sources.load("tiny", str(tmp_path / "data")).test) == 6


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch)
    assert prepare.main(["tiny", "--from", str(source), "--data_dir", str(source / "data")]) == 2
    assert capsys.readouterr().err == f"error: --data_dir: {source} is a file, not a folder. Give another place.\n"

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rose_jax.runtime.files.tempfile.TemporaryFile", refuse)
    assert prepare.main(["tiny", "--from", str(source), "--data_dir", str(tmp_path / "data")]) == 2
    assert f"error: --data_dir: cannot write to {tmp_path} (Permission denied)." in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_class_list_that_is_none(tmp_path, capsys):
    path = tmp_path / "list.txt"
    for content, words in (
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"n01440764\nn01440764", "more than once"),
    ):
        path.write_bytes(content)
        assert prepare.main(["imagenet100", "--data_dir", str(tmp_path), "--class_list", str(path)]) == 2
        assert re.match(f"error: Class list {path} .*{words}", capsys.readouterr().err)


def test_interrupted_run_is_continued_by_the_next(tmp_path, monkeypatch):
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch)
    leftover = tmp_path / "data" / ".incomplete-tiny" / "rose_tiny" / "1.0.0"
    leftover.mkdir(parents=True)  # of a run that was killed
    (leftover / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match="is not prepared"):
        sources.load("tiny", str(tmp_path / "data"))
    prepare.prepare("tiny", str(source), str(tmp_path / "data"))
    assert len(sources.load("tiny", str(tmp_path / "data")).test) == 6
    assert not leftover.exists()


@pytest.fixture
def imagenet_folder(tmp_path):
    """All hundred classes with two and one image, and a class that is not on the list."""
    for wnid in (*imagenet100.read_class_list(), "n00000000"):
        for split, n in (("train", 2), ("val", 1)):
            folder = tmp_path / "imagenet" / split / wnid
            folder.mkdir(parents=True)
            for k in range(n):
                (folder / f"{wnid}_{k}.JPEG").write_bytes(jpeg((20, 16), k))
    return tmp_path / "imagenet"


def test_imagenet100_from_folder(tmp_path, imagenet_folder):
    prepare.prepare("imagenet100", str(imagenet_folder), str(tmp_path / "data"), partial=True)
    dataset = sources.load("imagenet100", str(tmp_path / "data"))
    assert dataset.class_names == imagenet100.read_class_list()
    assert dataset.train.labels.tolist() == np.repeat(np.arange(100), 2).tolist()
    wnid = dataset.class_names[30]
    assert dataset.train.encoded(61) == (imagenet_folder / f"train/{wnid}/{wnid}_1.JPEG").read_bytes()
    assert dataset.train.name(61).startswith(f"train/{wnid}/{wnid}_1.JPEG")


def test_another_class_list_lies_beside_the_default(tmp_path, imagenet_folder):
    wnids = ["n00000000", *imagenet100.read_class_list()[1:]]
    path = tmp_path / "mine.txt"
    path.write_text("# my classes\n" + "\n".join(reversed(wnids)))
    data_dir = str(tmp_path / "data")
    prepare.prepare("imagenet100", str(imagenet_folder), data_dir, class_list=str(path), partial=True)
    assert sources.load("imagenet100", data_dir, class_list=str(path)).class_names == tuple(wnids)
    with pytest.raises(UserError, match="imagenet100 is not prepared"):
        sources.load("imagenet100", data_dir)


def test_imagenet_folder_without_a_class(tmp_path, imagenet_folder):
    wnid = imagenet100.read_class_list()[4]
    for file in (imagenet_folder / "val" / wnid).iterdir():
        file.unlink()
    (imagenet_folder / "val" / wnid).rmdir()
    with pytest.raises(UserError, match=rf"lacks the folders of 1 of the 100 classes wanted \({wnid}"):
        prepare.prepare("imagenet100", str(imagenet_folder), str(tmp_path / "data"), partial=True)


def test_command_line_ends_with_what_it_did(tmp_path, monkeypatch, capsys, caplog):
    source = tiny_zip(tmp_path / "tiny-imagenet-200.zip", monkeypatch)
    assert prepare.main(["tiny", "--from", str(source), "--data_dir", str(tmp_path / "data")]) == 0
    assert "Prepared tiny from" in capsys.readouterr().out
    assert "not the same file" in caplog.text  # an unknown checksum is a warning
    assert prepare.main(["tyny", "--from", str(source)]) == 2
    assert "Did you mean 'tiny'?" in capsys.readouterr().err
    assert prepare.main(["imagenet100", "--data_dir", str(tmp_path / "none")]) == 2
    assert "no public download" in capsys.readouterr().err


def test_script_runs():
    script = Path(__file__).parents[2] / "scripts" / "prepare_data"
    result = subprocess.run([script, "digits"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "needs no preparation" in result.stdout
