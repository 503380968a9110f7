"""Images and labels from an .npz file: x_train, y_train, x_test, y_test and, if wanted, class_names."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from rose_jax.data import crops
from rose_jax.data.prepare.base import Contents, SplitContents
from rose_jax.errors import UserError

NEEDED = ("x_train", "y_train", "x_test", "y_test")


class Arrays(NamedTuple):
    images: dict[str, np.ndarray]  # uint8 [n, h, w, 3], by split
    labels: dict[str, np.ndarray]  # int32 [n]
    class_names: tuple[str, ...]


def read(path: Path) -> Arrays:
    """Gray images become RGB; labels, numbers or texts, are numbered in sorted order."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*NEEDED, "class_names") if name in file.files}
            there = file.files
    except Exception as error:  # zipfile, zlib and NumPy raise different ones
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays ({error}).") from error
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; it has {', '.join(there) or 'nothing'}.")
    labels = {split: _labels(arrays[f"y_{split}"], f"{path}: y_{split}") for split in ("train", "test")}
    images = {split: _images(arrays[f"x_{split}"], f"{path}: x_{split}") for split in ("train", "test")}
    for split in labels:
        if len(labels[split]) != len(images[split]):
            raise UserError(
                f"{path}: {len(images[split])} images in x_{split}, {len(labels[split])} labels beside."
            )
    values = np.unique(np.concatenate(list(labels.values())))
    names = tuple(str(value) for value in values)
    given = arrays.get("class_names")
    if given is not None:
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= len(given):
            raise UserError(f"{path}: labels must be 0..{len(given) - 1}, positions in class_names.")
        values, names = np.arange(len(given)), tuple(map(str, given))
    numbered = {split: np.searchsorted(values, found).astype(np.int32) for split, found in labels.items()}
    return Arrays(images, numbered, names)


def contents(path: Path, size: int) -> Contents:
    """The same as files to be written: squares of `size` pixels."""
    arrays = read(path)

    def split(name: str) -> SplitContents:
        images, labels = arrays.images[name], arrays.labels[name]

        def encoded(i: int) -> bytes:
            return png(crops.fit_square(Image.fromarray(images[i]), size))

        return SplitContents([f"{path.name} {name}[{i}]" for i in range(len(labels))], labels, encoded)

    return Contents(arrays.class_names, {name: split(name) for name in ("train", "test")})


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _images(x: np.ndarray, where: str) -> np.ndarray:
    gray = x.ndim == 3
    if not (gray or (x.ndim == 4 and x.shape[3] in (1, 3))) or x.dtype != np.uint8 or not len(x):
        raise UserError(
            f"{where} is {x.dtype} {list(x.shape)}; it must be uint8 [n, h, w, 3], or [n, h, w] of gray images, with "
            "grey levels 0..255."
        )
    return np.repeat(x[..., None] if gray else x, 3, axis=3) if gray or x.shape[3] == 1 else x


def _labels(y: np.ndarray, where: str) -> np.ndarray:
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "iuUS":
        raise UserError(
            f"{where} is {y.dtype} {list(y.shape)}; it must be one whole number or text for each image."
        )
    return np.char.decode(y) if y.dtype.kind == "S" else y
