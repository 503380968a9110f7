"""TinyImageNet from `tiny-imagenet-200`: a folder, or the zip of Stanford's CS231n.

Classes in sorted-wnid order. 64x64 JPEGs are stored as they are, some grayscale, and become RGB when decoded. The
test set is the validation set with the labels of val_annotations.txt: the test labels were never published.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rose_jax.data.decode import checked_image
from rose_jax.data.prepare.archives import Files, open_files
from rose_jax.data.prepare.base import Contents, SplitContents
from rose_jax.errors import UserError

_SIDE = 64  # pixels
_ANNOTATIONS = "val/val_annotations.txt"
_TRAIN_IMAGE = re.compile(r"train/(n\d+)/images/[^/]+\.JPEG")


@contextlib.contextmanager
def open_contents(source: str | Path, class_list: str | None) -> Iterator[Contents]:
    with open_files(source, "wnids.txt") as files:
        class_names = tuple(sorted(_text(files, "wnids.txt").split()))
        repeated = sorted({wnid for wnid in class_names if class_names.count(wnid) > 1})
        if repeated:
            raise UserError(
                f"{files.where('wnids.txt')} names {', '.join(repeated[:5])} more than once. Fetch the dataset again."
            )
        train = {name: match[1] for name in files.names() if (match := _TRAIN_IMAGE.fullmatch(name))}
        splits = {
            "train": _split(files, train, class_names, "the folders of train/"),
            "test": _split(files, _validation(files), class_names, _ANNOTATIONS),
        }
        yield Contents(class_names, splits)


def _validation(files: Files) -> dict[str, str]:
    """Image name -> wnid. Lines are: file name, wnid, and four numbers of a box, between tabs."""
    wnids = {}
    for number, line in enumerate(_text(files, _ANNOTATIONS).splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise UserError(
                f"{files.where(_ANNOTATIONS)}, line {number}: expected an image name, a tab and a wnid."
            )
        wnids[f"val/images/{fields[0]}"] = fields[1]
    return wnids


def _split(files: Files, wnids: dict[str, str], class_names: tuple[str, ...], origin: str) -> SplitContents:
    label_of = {wnid: label for label, wnid in enumerate(class_names)}
    strange = sorted(set(wnids.values()) - label_of.keys())
    if strange:
        raise UserError(
            f"{files.where('wnids.txt')} does not list {', '.join(strange[:5])}, named by {origin}. "
            "The files do not belong together; fetch them again."
        )
    names = list(wnids)
    labels = np.array([label_of[wnid] for wnid in wnids.values()], np.int32)
    return SplitContents(
        names, labels, lambda i: checked_image(files.read(names[i]), files.where(names[i]), side=_SIDE)
    )


def _text(files: Files, name: str) -> str:
    try:
        return files.read(name).decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{files.where(name)} is not a text file ({error.reason} at byte {error.start}). Fetch the dataset again."
        ) from None
