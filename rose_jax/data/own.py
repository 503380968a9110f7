"""Sets that are not built in: images prepared from a folder, an .npz file, anything that TFDS has prepared.

Whether a set stays in memory follows from its size, and what the paper gives for its data sets (mean and deviation of
the channels) is measured.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rose_jax.data import crops, measure, records
from rose_jax.data.dataset import ArraySplit, Dataset, RecordSplit
from rose_jax.data.prepare import cache, npz
from rose_jax.data.records import DATA_DIR_VARIABLE, TfdsRecords, newest_version
from rose_jax.errors import UserError

RESIDENT_BYTES = 2 * 2**30  # decoded images of both splits; what is larger is decoded on the way
DEFAULT_SIZE = 64  # of a TFDS set whose images have no size in common
TEST_SPLITS = ("test", "validation")
FORMS = ("folder", "npz:FILE", "tfds:NAME")


def is_own(dataset: str) -> bool:
    return dataset == "folder" or dataset.startswith(("npz:", "tfds:"))


def load(dataset: str, name: str, size: int, root: Path) -> Dataset:
    """dataset: config.data.dataset; name, size: the keys beside it. root: the data folder."""
    kind, _, rest = dataset.partition(":")
    if name and kind != "folder":
        raise UserError(f"config.data.name is for config.data.dataset=folder, not for {dataset}. Leave it empty.")
    if kind == "npz":
        if size:
            raise UserError(
                "config.data.size does not apply to npz:FILE, whose images stay as they are. To resize them:\n"
                f"  scripts/prepare_data folder --from {rest} --size {size}"
            )
        return _from_npz(_npz_file(rest, root))
    found = _prepared_folder(name, root) if kind == "folder" else _tfds_folder(rest, root)
    return _from_records(_open(found), found, size, root, name or rest.split(":")[0])


def folder_name(name: str) -> str:
    """Of a prepared set, below the data folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UserError(f"{name!r} is no name for a set: use letters, digits, '-', '_' and '.', without a space.")
    return f"own_{name}"


def is_resident(images: int, size: int) -> bool:
    return images * size * size * 3 <= RESIDENT_BYTES


class _Opened(NamedTuple):
    """What a TFDS folder holds."""

    image: str  # the feature's name
    label: str
    class_names: tuple[str, ...]
    splits: dict[str, str]  # train, test -> the stored split
    counts: dict[str, int]
    side: int  # of the images, if they are all squares of one size; else 0
    prepared: int  # the --size of our own sets; else 0


def _open(folder: Path) -> _Opened:
    import tensorflow_datasets as tfds

    info = tfds.builder_from_directory(str(folder)).info
    if info.file_format is None or info.file_format.value != "array_record":
        raise UserError(
            f"{folder} is not stored as array_record, so only TensorFlow can read it. Prepare it again: "
            'tfds.builder(NAME, file_format="array_record").download_and_prepare()'
        )
    features = dict(info.features.items()) if isinstance(info.features, tfds.features.FeaturesDict) else {}
    image = _only(features, "image", tfds.features.Image, folder)
    label = _only(features, "label", tfds.features.ClassLabel, folder)
    test = next((name for name in TEST_SPLITS if name in info.splits), None)
    if "train" not in info.splits or test is None:
        raise UserError(
            f"{folder} has the splits {sorted(info.splits)}; needed are train, and test or validation."
        )
    splits = {"train": "train", "test": test}
    height, width = features[image].shape[:2]
    return _Opened(
        image,
        label,
        tuple(features[label].names or map(str, range(features[label].num_classes))),
        splits,
        {name: info.splits[stored].num_examples for name, stored in splits.items()},
        height if height and height == width else 0,
        int((info.metadata or {}).get("size", 0)),
    )


def _from_records(opened: _Opened, folder: Path, size: int, root: Path, name: str) -> Dataset:
    if opened.prepared and size > opened.prepared:
        raise UserError(
            f"config.data.size is {size}, but {folder} was prepared with {opened.prepared} pixels a side. Prepare it "
            f"again:  scripts/prepare_data folder --from DIR --name {name} --size {size} --overwrite"
        )
    side = size or opened.prepared or opened.side or DEFAULT_SIZE
    resident = is_resident(sum(opened.counts.values()), side)
    records.forget_open_records()  # the files may have been prepared again since

    def decoded(where: Path, split: str) -> ArraySplit:
        images, labels = (np.load(where / f"{split}_{part}.npy", mmap_mode="r") for part in ("images", "labels"))
        return ArraySplit(images, np.asarray(labels))

    def encoded(where: Path, split: str) -> RecordSplit:
        source = TfdsRecords(str(folder), opened.splits[split], image_key=opened.image)
        return RecordSplit(source, np.load(where / f"{split}_labels.npy"))

    read: Callable[[Path, str], ArraySplit | RecordSplit] = decoded if resident else encoded

    def make(target: Path) -> None:
        digest = hashlib.blake2b(digest_size=6)
        for split, stored in opened.splits.items():
            examples = _Examples(str(folder), stored, opened.image, opened.label)
            if resident:
                cache.write_decoded(target, split, examples, side, f"Prepare {folder} again.", crops.fit_square)
            else:
                cache.write_labels(target, split, examples)
            for record in examples:
                digest.update(record["image"])
        np.save(target / "digest.npy", np.frombuffer(digest.digest(), np.uint8))
        np.save(target / "moments.npy", measure.moments(read(target, "train"), side))

    where = folder.relative_to(root) if folder.is_relative_to(root) else folder.relative_to(folder.parents[2])
    cached = root / "decoded" / f"{'-'.join(where.parts)}-{side}"
    arrays = cache.cached_arrays(cached, cache.fingerprint(folder), make)
    return _checked(
        Dataset(
            name,
            len(opened.class_names),
            opened.class_names,
            side,
            read(cached, "train"),
            read(cached, "test"),
            "own",
            arrays["digest"].tobytes().hex(),
            arrays["moments"],
        ),
        str(folder),
    )


def _from_npz(path: Path) -> Dataset:
    content = npz.read(path)
    for split, images in content.images.items():
        if images.shape[1] != images.shape[2] or images.shape[1:] != content.images["train"].shape[1:]:
            raise UserError(
                f"{path}: x_{split} has images of {images.shape[2]}x{images.shape[1]} pixels. A run reads squares of one "
                f"size; to make them:\n  scripts/prepare_data folder --from {path} --size SIZE"
            )
    digest = hashlib.blake2b(digest_size=6)
    for images in content.images.values():
        digest.update(np.ascontiguousarray(images).data)
    train, test = (ArraySplit(content.images[name], content.labels[name]) for name in ("train", "test"))
    side = train.images.shape[1]
    dataset = Dataset(path.stem, len(content.class_names), content.class_names, side, train, test, "own")
    return _checked(replace(dataset, digest=digest.hexdigest()), str(path))


def _checked(dataset: Dataset, where: str) -> Dataset:
    names = dataset.class_names
    for split, labels in (("training", dataset.train.labels), ("test", dataset.test.labels)):
        if labels.size and labels.min() < 0:
            raise UserError(
                f"{where}: some {split} images have no label, so that nothing can be scored with them."
            )
        empty = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)
        if empty.size:
            raise UserError(
                f"{where}: there is no {split} image of {empty.size} of the {len(names)} classes (as "
                f"{names[empty[0]]!r}). Every class needs some of both."
            )
    return dataset


class _Examples:
    """Records {image, label, ...} of a split under these names, whatever the set calls them."""

    def __init__(self, folder: str, split: str, image: str, label: str):
        self._records, self._image, self._label = records.open_records(folder, split, image), image, label

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> dict[str, Any]:
        record = self._records[i]
        return record | {"image": record[self._image], "label": record[self._label]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))


def _prepared_folder(name: str, root: Path) -> Path:
    here = ", ".join(sorted(p.name.removeprefix("own_") for p in root.glob("own_*") if newest_version(p)))
    if not name:
        raise UserError(f"Give --config.data.name, the name of your images. Prepared in {root}: {here or 'none'}.")
    found = newest_version(root / folder_name(name))
    if found is None:
        raise UserError(
            f"There is no set {name!r} in {root} (prepared there: {here or 'none'}). Prepare it:\n"
            f"  scripts/prepare_data folder --from DIR --name {name} --data_dir {root}\n"
            f"Another data folder: --config.data.dir, or ${DATA_DIR_VARIABLE}."
        )
    return found


def _tfds_folder(text: str, root: Path) -> Path:
    """NAME, NAME/CONFIG, either with :VERSION, below the data folder or TFDS's own."""
    name, _, version = text.partition(":")
    if not name:
        raise UserError("Give the name of a set: --config.data.dataset=tfds:NAME, NAME/CONFIG or NAME:VERSION.")
    places = [root / name, Path("~/tensorflow_datasets").expanduser() / name]
    for place in places:
        found = newest_version(place, version or "*.*.*")
        if found is not None:
            return found
    raise UserError(
        f"TFDS has not prepared {text}: there is no {version or 'VERSION'}/dataset_info.json in "
        f"{' nor in '.join(map(str, places))}. Prepare it where TensorFlow is installed, "
        'with tfds.builder(NAME, data_dir=DIR, file_format="array_record").download_and_prepare(), and give '
        "--config.data.dir=DIR."
    )


def _only(features: dict[str, Any], usual: str, kind: type, folder: Path) -> str:
    """The feature of a kind: by its usual name, or the only one there is."""
    found = [name for name, feature in features.items() if isinstance(feature, kind)]
    if usual in found:
        return usual
    if len(found) != 1:
        raise UserError(
            f"{folder} is no image classification set: of its features {sorted(features)}, {len(found)} are a "
            f"{kind.__name__}, needed is one."
        )
    return found[0]


def _npz_file(text: str, root: Path) -> Path:
    path = Path(text).expanduser()
    for place in (path, root / path):
        if text and place.is_file():
            return place.absolute()
    raise UserError(
        f"There is no file {path.absolute()} (nor {root / path}). Give --config.data.dataset=npz:FILE."
    )
