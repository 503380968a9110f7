"""A prepared set as flat .npy files that memory-map in milliseconds: decoded images, or only their labels.

The files of a set appear together, by one rename, and carry a fingerprint of the records they were made from.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from rose_jax.data.decode import open_rgb
from rose_jax.errors import UserError

Arrays = dict[str, np.ndarray]


def cached_arrays(folder: Path, fingerprint: str, make: Callable[[Path], None]) -> Arrays:
    """The .npy files of `folder`, memory-mapped; `make(path)` writes them if absent or of other records."""
    if _fingerprint_of(folder) != fingerprint:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # mkdtemp, not the process id: hosts that share the folder may have equal ones
            incomplete = Path(tempfile.mkdtemp(prefix=f"{folder.name}.incomplete-", dir=folder.parent))
        except OSError as error:
            raise UserError(
                f"Cannot write the decoded images to {folder.parent} ({error}). The data folder must be writable "
                "for the first run. If the records' folder is not, link them into one that is."
            ) from error
        try:
            make(incomplete)
            (incomplete / "fingerprint.json").write_text(json.dumps({"records": fingerprint}))
            _replace_folder(incomplete, folder, fingerprint)
        finally:
            shutil.rmtree(incomplete, ignore_errors=True)
    return {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}


def fingerprint(builder_dir: Path) -> str:
    """Changes whenever the prepared records change, and not when they are copied to another machine.

    Names and sizes of the files in their folder, their times in whole seconds (tar and scp keep no fractions), and what
    is in the small ones: TFDS writes down there what the records are.
    """
    digest = hashlib.sha256()
    for path in sorted(builder_dir.iterdir()):
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {int(stat.st_mtime)}\n".encode())
            if path.suffix == ".json":
                digest.update(path.read_bytes())
    return digest.hexdigest()


def write_decoded(
    folder: Path,
    split: str,
    records: Any,
    image_size: int,
    again: str,
    crop: Callable[[Image.Image, int], np.ndarray] | None = None,
) -> None:
    """Records {image: file, label: id} -> SPLIT_images.npy uint8 [n, S, S, 3], SPLIT_labels.npy int32 [n].

    again: what to do if an image is not what it should be. crop: makes an image of S pixels a side of any; without it,
    all must be so.
    """
    shape = (len(records), image_size, image_size, 3)
    images = np.lib.format.open_memmap(folder / f"{split}_images.npy", "w+", np.uint8, shape)
    labels = np.empty(len(records), np.int32)
    for i in _progress(records, f"decoding {split}"):
        record = records[i]
        try:
            opened = open_rgb(record["image"], record_name(record, i))
        except UserError as error:
            raise UserError(f"{error}\n{again}") from error
        image = crop(opened, image_size) if crop else np.asarray(opened)
        if image.shape != shape[1:]:
            raise UserError(
                f"Image {record_name(record, i)} of {split} is {image.shape[1]}x{image.shape[0]} pixels, "
                f"expected {image_size}x{image_size}. {again}"
            )
        images[i], labels[i] = image, record["label"]
    images.flush()
    np.save(folder / f"{split}_labels.npy", labels)


def write_labels(folder: Path, split: str, records: Any) -> None:
    """SPLIT_labels.npy, int32 [n], without decoding an image."""
    labels = (records[i]["label"] for i in _progress(records, f"reading labels of {split}"))
    np.save(folder / f"{split}_labels.npy", np.fromiter(labels, np.int32, len(records)))


def record_name(record: dict, index: int) -> str:
    """The image's original path if the record has it (stock TFDS sets call it `id` or `file_name`)."""
    for key in ("name", "file_name", "id"):
        if key in record:
            value = record[key]
            return value.decode() if isinstance(value, bytes) else str(value)
    return f"number {index}"


def _fingerprint_of(folder: Path) -> str | None:
    try:
        return json.loads((folder / "fingerprint.json").read_text())["records"]
    except (OSError, ValueError, KeyError):
        return None


def _replace_folder(new: Path, folder: Path, fingerprint: str) -> None:
    try:
        new.rename(folder)
    except OSError:  # the folder exists: stale, or just written by another process
        if _fingerprint_of(folder) == fingerprint:
            return
        stale = folder.with_name(f"{folder.name}.stale-{os.getpid()}")
        folder.rename(stale)
        new.rename(folder)
        shutil.rmtree(stale)


def _progress(records: Any, description: str) -> Iterable[int]:
    return tqdm(range(len(records)), description, unit=" images", disable=not sys.stderr.isatty())
