"""Datasets by name: digits, TFDS's own layout, the decoded cache, and messages when the data is wrong."""

import hashlib
import io
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from sklearn.datasets import load_digits

from rose_jax.data import sources, synthetic
from rose_jax.data.prepare import cache, imagenet100
from rose_jax.errors import UserError


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write_stock(root: Path, name: str, class_names: list[str], splits: dict[str, list[tuple[bytes, int]]]) -> Path:
    """A dataset as TFDS's own builders leave it: NAME/VERSION with records of image, label and file_name."""
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=class_names),
            "file_name": tfds.features.Text(),
        }
    )
    folder = root / name / "5.1.0"
    folder.mkdir(parents=True)
    identity = tfds.core.dataset_info.DatasetIdentity(
        name=name, version=tfds.core.Version("5.1.0"), data_dir=str(folder), module_name=""
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=64, file_format="array_record")
    writer.initialize_splits(list(splits))
    for split, examples in splits.items():
        records = [
            {"image": io.BytesIO(data), "label": label, "file_name": f"{split}_{i}.png"}
            for i, (data, label) in enumerate(examples)
        ]
        writer.add_examples({split: records})
    writer.close_all()
    return folder


def random_images(n: int, size: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def test_digits_are_all_of_scikit_learns_split_by_class():
    dataset = sources.load("digits")
    bunch = load_digits()
    assert len(dataset.train) + len(dataset.test) == len(bunch.target)
    for label in range(10):
        n = np.sum(bunch.target == label)
        assert abs(np.sum(dataset.test.labels == label) - 0.2 * n) <= 0.5
    both = np.concatenate([dataset.train.images, dataset.test.images])
    assert both.dtype == np.uint8
    assert both.shape[1:] == (8, 8, 3)
    # The same multiset of images: sums of gray levels agree, and every level is a multiple of 255 / 16.
    found = np.sort(np.rint(both[..., 0] / (255 / 16)).sum(axis=(1, 2)))
    np.testing.assert_array_equal(found, np.sort(bunch.images.sum(axis=(1, 2))))
    np.testing.assert_array_equal(both[..., 0], both[..., 2])


def test_digits_split_never_changes():
    """Results of different versions are only comparable on the same test images."""
    digest = hashlib.sha256(sources.load("digits").test.images.tobytes()).hexdigest()
    assert digest.startswith("9ce631d0f07a67b9")


def test_unknown_dataset_names_the_nearest():
    with pytest.raises(UserError, match=r"Unknown dataset 'cifar'. Did you mean 'cifar100'\?"):
        sources.load("cifar")


def test_missing_data_names_folder_file_and_command(tmp_path):
    with pytest.raises(UserError) as error:
        sources.load("tiny", str(tmp_path))
    message = str(error.value)
    assert str(tmp_path / "rose_tiny") in message
    assert "tiny-imagenet-200.zip" in message
    assert f"scripts/prepare_data tiny --from PATH --data_dir {tmp_path}" in message
    assert "$ROSE_JAX_DATA" in message
    assert "~/rose_jax_data" in message


def test_class_list_is_for_imagenet_alone():
    with pytest.raises(UserError, match="A class list chooses among ImageNet's classes; tiny has none"):
        sources.load("tiny", class_list="list.txt")


def test_data_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ROSE_JAX_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="elsewhere"):
        sources.load("cifar100")


def test_stock_cifar100_is_read_as_it_is_and_cached(tmp_path, monkeypatch):
    images = random_images(300, 32)
    labels = np.arange(300) % 100
    names = [f"class{i}" for i in range(100)]
    examples = [(png(image), int(label)) for image, label in zip(images, labels, strict=True)]
    write_stock(tmp_path, "cifar100", names, {"train": examples[:200], "test": examples[200:]})
    dataset = sources.load("cifar100", str(tmp_path))
    np.testing.assert_array_equal(dataset.train.images, images[:200])
    np.testing.assert_array_equal(dataset.test.labels, labels[200:])
    assert dataset.class_names == tuple(names)
    assert isinstance(dataset.train.images, np.memmap)

    def fail(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "write_decoded", fail)
    np.testing.assert_array_equal(sources.load("cifar100", str(tmp_path)).train.images, images[:200])


def test_cache_follows_its_records(tmp_path):
    folder = tmp_path / "decoded" / "set"
    first = cache.cached_arrays(folder, "a", lambda path: np.save(path / "x.npy", np.zeros(3)))
    second = cache.cached_arrays(folder, "b", lambda path: np.save(path / "x.npy", np.ones(3)))
    np.testing.assert_array_equal(first["x"], np.zeros(3))  # an open map outlives its file
    np.testing.assert_array_equal(second["x"], np.ones(3))
    assert [p.name for p in folder.parent.iterdir()] == ["set"]


def test_records_that_are_copied_keep_their_cache_and_others_do_not(tmp_path):
    """As scripts/tpu_vm.sh ships them: tar keeps no fractions of a second."""
    there = tmp_path / "there"
    there.mkdir()
    for name, content in (("dataset_info.json", '{"md5": "a"}'), ("set-train.array_record", "records")):
        (there / name).write_text(content)
        os.utime(there / name, ns=(10**18 + 123456789,) * 2)
    subprocess.run(["tar", "-czf", tmp_path / "data.tar.gz", "-C", tmp_path, "there"], check=True)
    before = cache.fingerprint(there)
    shutil.rmtree(there)
    subprocess.run(["tar", "-xzf", tmp_path / "data.tar.gz", "-C", tmp_path], check=True)
    assert (there / "dataset_info.json").stat().st_mtime_ns == 10**18
    assert cache.fingerprint(there) == before
    (there / "dataset_info.json").write_text('{"md5": "b"}')
    os.utime(there / "dataset_info.json", ns=(10**18,) * 2)
    assert cache.fingerprint(there) != before


def test_interrupted_cache_leaves_nothing(tmp_path):
    def interrupted(path):
        np.save(path / "x.npy", np.zeros(3))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached_arrays(tmp_path / "set", "a", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_wrong_number_of_classes(tmp_path):
    example = (png(random_images(1, 32)[0]), 0)
    write_stock(tmp_path, "cifar100", ["a", "b"], {"train": [example], "test": [example]})
    with pytest.raises(UserError, match=r"has 2 classes, expected 100"):
        sources.load("cifar100", str(tmp_path))


def test_class_without_images(tmp_path):
    examples = [(png(random_images(1, 32)[0]), label) for label in range(99)]
    names = [f"class{i}" for i in range(100)]
    write_stock(tmp_path, "cifar100", names, {"train": examples, "test": examples})
    with pytest.raises(UserError, match=r"no train image of 1 classes \(as 'class99'\)"):
        sources.load("cifar100", str(tmp_path))


def test_undecodable_record_is_named(tmp_path):
    good = png(random_images(1, 32)[0])
    names = [f"class{i}" for i in range(100)]
    write_stock(tmp_path, "cifar100", names, {"train": [(good, 0), (good[:40], 1)], "test": [(good, 0)]})
    with pytest.raises(UserError, match=r"train_1.png does not decode"):
        sources.load("cifar100", str(tmp_path))
    assert not list((tmp_path / "decoded").glob("*"))


def test_imagenet2012_is_filtered_to_the_class_list(tmp_path):
    wnids = imagenet100.read_class_list()
    names = sorted([*wnids, "n00000001", "n05000000", "n99999999"])
    image = png(random_images(1, 8)[0])
    labels = {"train": [*range(103), 5, 5], "validation": list(reversed(range(103)))}
    splits = {name: [(image, label) for label in split] for name, split in labels.items()}
    write_stock(tmp_path, "imagenet2012", names, splits)
    dataset = sources.load("imagenet100", str(tmp_path))
    assert dataset.class_names == wnids
    expected = [wnids.index(names[label]) for label in labels["train"] if names[label] in wnids]
    assert dataset.train.labels.tolist() == expected
    position = 3
    original = [i for i, label in enumerate(labels["validation"]) if names[label] in wnids][position]
    assert dataset.test.name(position).startswith(f"validation_{original}.png")
    assert dataset.test.encoded(position) == image


def test_default_class_list_is_the_1993_shuffle():
    """Recomputed from the thousand wnids that TFDS ships for imagenet2012."""
    labels = Path(tfds.__file__).parent / "datasets" / "imagenet2012" / "labels.txt"
    thousand = labels.read_text().split()
    assert thousand == sorted(thousand)
    chosen = np.random.RandomState(1993).permutation(1000)[:100]
    assert imagenet100.read_class_list() == tuple(sorted(thousand[i] for i in chosen))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01440764\n", "names 1 classes, expected 100"),
        ("n01440764\nn01440764\n", "names n01440764 more than once"),
    ],
)
def test_bad_class_lists(tmp_path, text, message):
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        sources.load("imagenet100", str(tmp_path), class_list=str(path))


@pytest.mark.parametrize("name", ["cifar100", "tiny"])
def test_synthetic_images_can_be_learnt(tmp_path, name):
    dataset = sources.load(name, str(tmp_path), synthetic_if_missing=True)
    spec = sources.KNOWN[name]
    assert dataset.train.images.shape == (16 * spec.num_classes, spec.image_size, spec.image_size, 3)
    assert np.all(np.bincount(dataset.test.labels) == 4)
    flat = dataset.train.images[:, ::4, ::4].reshape(len(dataset.train), -1).astype(np.float32)
    means = np.stack([flat[dataset.train.labels == c].mean(0) for c in range(spec.num_classes)])
    test = dataset.test.images[:, ::4, ::4].reshape(len(dataset.test), -1).astype(np.float32)
    distance = (means**2).sum(1)[None, :] - 2 * test @ means.T
    assert np.mean(distance.argmin(1) == dataset.test.labels) > 0.9


def test_synthetic_imagenet_is_encoded_and_deterministic():
    first, second = synthetic.synthetic_dataset("imagenet100"), synthetic.synthetic_dataset("imagenet100")
    assert isinstance(first.train, sources.RecordSplit)
    assert first.train.encoded(7) == second.train.encoded(7)
    assert first.train.encoded(7) != first.test.encoded(7)
