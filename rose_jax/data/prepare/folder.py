"""A folder of images, a folder for each class: DIR/CLASS/* or DIR/{train,test}/CLASS/*."""

import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from rose_jax.data import crops, decode
from rose_jax.data.prepare.base import Contents, SplitContents
from rose_jax.data.prepare.npz import png
from rose_jax.errors import UserError

TEST_NAMES = ("test", "val", "valid", "validation")
_SPLIT_SEED = 0  # the same images are test images whenever the folder is prepared


def contents(folder: Path, size: int, test: float, resident_bytes: int, skip_damaged: bool = False) -> Contents:
    """test: the share of each class that becomes test images, where the folder has no test images of its own.

    Small sets are stored as squares of `size` pixels. Those whose squares would take more than `resident_bytes` keep
    their pictures, for crops are taken when they are read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give --from a folder with a folder of images for each class.")
    listed = _listed(folder, test, skip_damaged)
    names = tuple(sorted(listed["train"]))
    images = sum(len(files) for split in listed.values() for files in split.values())
    small = images * size * size * 3 <= resident_bytes

    def split(name: str) -> SplitContents:
        files = [file for label in names for file in listed[name][label]]
        labels = np.repeat(np.arange(len(names), dtype=np.int32), [len(listed[name][label]) for label in names])

        def encoded(i: int) -> bytes:
            data, where = files[i].read_bytes(), str(files[i])
            return _square(data, where, size) if small else _picture(data, where, 2 * size)

        return SplitContents([str(file.relative_to(folder)) for file in files], labels, encoded)

    return Contents(names, {name: split(name) for name in ("train", "test")})


def image_files(folder: Path) -> list[Path]:
    """Every image below a folder, by Pillow's list of file types, in the order of their names."""
    Image.init()
    known = Image.registered_extensions()
    below = (path for path in sorted(folder.rglob("*")) if not _hidden(path, folder))
    return [path for path in below if path.suffix.lower() in known and path.is_file()]


def _listed(folder: Path, test: float, skip_damaged: bool) -> dict[str, dict[str, list[Path]]]:
    """split -> class -> files."""
    inside = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not _hidden(path, folder)}
    tests = [name for name in TEST_NAMES if name in inside]
    if "train" in inside and set(inside) <= {"train", *TEST_NAMES}:  # else "train" is a class among others
        train = _classes(inside["train"], skip_damaged)
        for name in tests[1:]:
            logging.warning("%s is left out: test images are those in %s.", inside[name], inside[tests[0]])
        if tests:
            return {"train": train, "test": _matching(_classes(inside[tests[0]], skip_damaged), train, inside)}
    else:
        train = _classes(folder, skip_damaged)
    return _divided(train, test, folder)


def _classes(folder: Path, skip_damaged: bool) -> dict[str, list[Path]]:
    found = {
        path.name: image_files(path)
        for path in sorted(folder.iterdir())
        if path.is_dir() and not _hidden(path, folder)
    }
    if skip_damaged:
        found = {name: [file for file in files if _readable(file)] for name, files in found.items()}
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise UserError(
            f"{folder / empty[0]} holds no image that Pillow reads ({len(empty)} such folders). Each folder in {folder} "
            "is a class: remove those that are none."
        )
    if len(found) < 2:
        raise UserError(
            f"{folder} holds {len(found)} folders of images; each class must have one of its own, and there must be two "
            "or more:  DIR/CLASS/IMAGE, or DIR/train/CLASS/IMAGE and DIR/test/CLASS/IMAGE."
        )
    loose = sum(path.is_file() and not _hidden(path, folder) for path in folder.iterdir())
    if loose:
        logging.warning("%s: %d files that lie in no class are left out.", folder, loose)
    return found


def _matching(test: dict[str, list[Path]], train: dict[str, list[Path]], inside: dict[str, Path]) -> dict:
    different = sorted(set(train) ^ set(test))
    if different:
        only = "train" if different[0] in train else "test"
        raise UserError(
            f"{inside['train'].parent}: {len(different)} classes are not in both splits (as {different[0]!r}, which is "
            f"only in {only}). Every class needs training and test images."
        )
    return test


def _divided(train: dict[str, list[Path]], test: float, folder: Path) -> dict[str, dict[str, list[Path]]]:
    if not 0 < test < 1:
        raise UserError(f"--test is {test}; it must be a share between 0 and 1, as 0.2.")
    few = [name for name, files in train.items() if len(files) < 2]
    if few:
        raise UserError(
            f"{folder / few[0]} holds a single image ({len(few)} such classes): one to train on and one to test with are "
            "the least."
        )
    parts: dict[str, dict[str, list[Path]]] = {"train": {}, "test": {}}
    for name, files in train.items():
        shuffled = np.random.RandomState(_SPLIT_SEED).permutation(len(files))
        chosen = set(shuffled[: min(max(1, round(test * len(files))), len(files) - 1)].tolist())
        parts["test"][name] = [file for i, file in enumerate(files) if i in chosen]
        parts["train"][name] = [file for i, file in enumerate(files) if i not in chosen]
    return parts


def _square(data: bytes, where: str, size: int) -> bytes:
    return png(crops.fit_square(decode.open_upright(data, where), size))


def _picture(data: bytes, where: str, most: int) -> bytes:
    """As it is if that is a JPEG of moderate size: a telephone's pictures would be most of the time of training."""
    image = decode.open_upright(data, where)
    scale = most / min(image.size)
    with Image.open(io.BytesIO(data)) as file:
        upright = file.getexif().get(ExifTags.Base.Orientation, 1) == 1
        if file.format == "JPEG" and upright and scale >= 1:
            return data
    if scale < 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def _readable(file: Path) -> bool:
    try:
        decode.open_upright(file.read_bytes(), str(file))
    except UserError as error:
        logging.warning("Left out: %s", error)
        return False
    return True


def _hidden(path: Path, folder: Path) -> bool:
    parts: Sequence[str] = path.relative_to(folder).parts
    return any(part.startswith((".", "__MACOSX")) for part in parts)
