"""Datasets by name, read without TensorFlow from array_record files that TFDS has prepared.

The paper's sets and the digits are here; any other (own.py) comes through the same `load`. Small sets become
memory-mapped uint8 arrays; ImageNet-100 stays encoded, with random access.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rose_jax.data import own
from rose_jax.data.dataset import ArraySplit as ArraySplit
from rose_jax.data.dataset import Dataset as Dataset
from rose_jax.data.dataset import RecordSplit as RecordSplit
from rose_jax.data.prepare import cache
from rose_jax.data.records import (
    DATA_DIR_VARIABLE,
    DEFAULT_DATA_DIR,
    TfdsRecords,
    data_folder,
    forget_open_records,
    newest_version,
    open_records,
)
from rose_jax.errors import UserError, unknown


class Spec(NamedTuple):
    """What is known of a dataset before it is read."""

    num_classes: int
    image_size: int  # of the images a model sees
    in_memory: bool
    prepared: str  # folder of our builder's records, below the data folder; "" needs no preparation
    stock: str = ""  # folder of TFDS's own builder, read if the user has prepared it
    stock_test_split: str = "test"
    wanted: str = ""  # what prepare_data generates from
    per_class: tuple[int, int] = (0, 0)  # images of a class, train and test; the most where classes differ


KNOWN: dict[str, Spec] = {
    "digits": Spec(10, 8, True, ""),
    "cifar100": Spec(
        100, 32, True, "rose_cifar100", "cifar100", wanted="cifar-100-python.tar.gz", per_class=(500, 100)
    ),
    "tiny": Spec(200, 64, True, "rose_tiny", wanted="tiny-imagenet-200.zip", per_class=(500, 50)),
    "imagenet100": Spec(
        100, 224, False, "rose_imagenet100", "imagenet2012", "validation", "an ImageNet folder", (1300, 50)
    ),
}


def load(
    name: str,
    data_dir: str | None = None,
    *,
    class_list: str | None = None,
    synthetic_if_missing: bool = False,
    own_name: str = "",
    size: int = 0,
) -> Dataset:
    """The dataset `name` (see KNOWN, and own.py for others) from `data_dir`, by default $ROSE_JAX_DATA or ~/rose_jax_data.

    class_list: path of another hundred wnids for imagenet100. synthetic_if_missing: if the data is not there,
    made-up images of the same shape and number of classes instead of an error. own_name, size: of own sets.
    """
    if own.is_own(name):
        return own.load(name, own_name, size, data_folder(data_dir))
    if name not in KNOWN:
        raise unknown("dataset", name, [*KNOWN, *own.FORMS])
    if own_name or size:
        key = "name" if own_name else "size"
        raise UserError(f"config.data.{key} is for images of your own; {name} is as it is. Leave it out.")
    if class_list and name != "imagenet100":
        raise UserError(f"A class list chooses among ImageNet's classes; {name} has none. Leave it empty.")
    if name == "digits":
        return _digits()
    root = data_folder(data_dir)
    found = find_prepared(name, root, class_list)
    if found is None:
        if synthetic_if_missing:
            from rose_jax.data import synthetic

            logging.warning("%s is not in %s: using synthetic images.", name, root)
            return synthetic.synthetic_dataset(name)
        raise _missing(name, root, class_list)
    return _load_prepared(name, found, root, class_list)


def find_prepared(name: str, root: Path, class_list: str | None = None, *, ours_only: bool = False) -> Path | None:
    """The newest complete version of the dataset below `root`: ours if there is one, else TFDS's own."""
    stock = [root / KNOWN[name].stock] if KNOWN[name].stock and not ours_only else []
    for folder in (our_folder(name, root, class_list), *stock):
        found = newest_version(folder)
        if found is not None:
            return found
    return None


def _load_prepared(name: str, builder_dir: Path, root: Path, class_list: str | None) -> Dataset:
    import tensorflow_datasets as tfds

    forget_open_records()  # the files may have been prepared again since
    spec = KNOWN[name]
    builder = tfds.builder_from_directory(str(builder_dir))
    stock = builder.name == spec.stock
    if builder.info.file_format is None or builder.info.file_format.value != "array_record":
        raise UserError(
            f"{builder_dir} is not stored as array_record, so only TensorFlow can read it. Prepare it "
            f'with file_format="array_record", or run\n  {_command(name, root)}'
        )
    partial = bool((builder.info.metadata or {}).get("partial"))
    if partial:
        logging.warning("%s was prepared from a partial copy (--partial): accuracies mean little.", builder_dir)
    splits = {"train": "train", "test": spec.stock_test_split if stock else "test"}
    class_names = wanted = tuple(builder.info.features["label"].names)
    if stock and name == "imagenet100":
        from rose_jax.data.prepare import imagenet100

        wanted = imagenet100.read_class_list(class_list)

    def make(folder: Path) -> None:
        for split, stored in splits.items():
            records = open_records(str(builder_dir), stored)
            if spec.in_memory:
                cache.write_decoded(folder, split, records, spec.image_size, _again(name, root))
            else:
                cache.write_labels(folder, split, records)

    cached = root / "decoded" / "-".join(builder_dir.relative_to(root).parts)
    arrays = cache.cached_arrays(cached, cache.fingerprint(builder_dir), make)

    def split_of(split: str) -> ArraySplit | RecordSplit:
        labels = np.asarray(arrays[f"{split}_labels"])
        if spec.in_memory:
            return ArraySplit(arrays[f"{split}_images"], labels)
        rows, labels = (None, labels) if wanted == class_names else _only_classes(labels, class_names, wanted)
        return RecordSplit(TfdsRecords(str(builder_dir), splits[split], rows), labels)

    train, test, kind = split_of("train"), split_of("test"), "partial" if partial else "complete"
    dataset = Dataset(name, spec.num_classes, wanted, spec.image_size, train, test, kind)
    _check(dataset, builder_dir, root)
    return dataset


def _only_classes(
    labels: np.ndarray, class_names: tuple[str, ...], wanted: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose class is wanted, and their labels as positions in `wanted`."""
    missing = sorted(set(wanted) - set(class_names))
    if missing:
        raise UserError(f"The prepared set has no class {', '.join(missing[:5])} of the class list.")
    new_label = np.full(len(class_names), -1, np.int32)
    new_label[[class_names.index(wnid) for wnid in wanted]] = np.arange(len(wanted))
    rows = np.flatnonzero(new_label[labels] >= 0)
    return rows, new_label[labels[rows]]


def _check(dataset: Dataset, where: Path, root: Path) -> None:
    names, again = dataset.class_names, _again(dataset.name, root)
    if len(names) != dataset.num_classes:
        raise UserError(f"{where} has {len(names)} classes, expected {dataset.num_classes}. {again}")
    for split, labels in (("train", dataset.train.labels), ("test", dataset.test.labels)):
        empty = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)
        if empty.size:
            raise UserError(f"{where}: no {split} image of {empty.size} classes (as {names[empty[0]]!r}). {again}")


def _digits() -> Dataset:
    """Scikit-learn's scanned digits, gray levels 0..16 -> uint8 RGB, split 80/20 in each class, always alike."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    gray = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    images, labels = np.repeat(gray[..., None], 3, axis=-1), bunch.target.astype(np.int32)
    shuffled = np.random.RandomState(0).permutation(len(labels))
    is_test = np.zeros(len(labels), bool)
    for label in range(10):
        rows = shuffled[labels[shuffled] == label]
        is_test[rows[: round(0.2 * len(rows))]] = True
    train = ArraySplit(images[~is_test], labels[~is_test])
    return Dataset("digits", 10, tuple("0123456789"), 8, train, ArraySplit(images[is_test], labels[is_test]))


def our_folder(name: str, root: Path, class_list: str | None) -> Path:
    """Where our builder's versions of the dataset lie; ImageNet-100 has a folder for each class list."""
    folder = root / KNOWN[name].prepared
    if name == "imagenet100":
        from rose_jax.data.prepare import imagenet100

        folder = folder / imagenet100.config_name(imagenet100.read_class_list(class_list))
    return folder


def _missing(name: str, root: Path, class_list: str | None) -> UserError:
    spec = KNOWN[name]
    also = f" (nor TFDS's own {root / spec.stock})" if spec.stock else ""
    return UserError(
        f"{name} is not prepared: there is no {our_folder(name, root, class_list)}/*/dataset_info.json{also}. "
        f"Prepare it from {spec.wanted}:\n  {_command(name, root)}\n"
        "(where there is no scripts folder: python -m rose_jax.data.prepare). "
        f"The data folder is {root}; set ${DATA_DIR_VARIABLE} to use another (default {DEFAULT_DATA_DIR})."
    )


def _again(name: str, root: Path) -> str:
    return f"Prepare it again from an unaltered copy:\n  {_command(name, root)} --overwrite"


def _command(name: str, root: Path) -> str:
    return f"scripts/prepare_data {name} --from PATH --data_dir {root}"
