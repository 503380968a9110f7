"""ImageNet-100 from an ImageNet folder (train/WNID/*.JPEG, val/WNID/*.JPEG): a hundred of its classes.

The default list is PyCIL's: the thousand wnids sorted, shuffled with seed 1993, the first hundred of them. Labels
0..99 are these hundred in sorted order. JPEGs keep their resolution; crops are taken when they are read.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rose_jax.data.decode import checked_image
from rose_jax.data.prepare.archives import root_folder
from rose_jax.data.prepare.base import Contents, SplitContents
from rose_jax.errors import UserError

DEFAULT_LIST = Path(__file__).parents[1] / "imagenet100.txt"
_SUFFIXES = (".jpeg", ".jpg", ".png")


def read_class_list(path: str | Path | None = None) -> tuple[str, ...]:
    """The wnids of a class list (one a line, # starts a comment), sorted; the packaged list by default."""
    path = Path(path).expanduser() if path else DEFAULT_LIST
    if not path.is_file():
        raise UserError(f"Class list {path} does not exist. It should hold one wnid (like n01440764) a line.")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"Class list {path} cannot be read as text ({error}). It should hold one wnid (like n01440764) a line."
        ) from None
    wnids = [line.split("#")[0].strip() for line in text.splitlines()]
    wnids = [wnid for wnid in wnids if wnid]
    repeated = sorted({wnid for wnid in wnids if wnids.count(wnid) > 1})
    if repeated:
        raise UserError(f"Class list {path} names {', '.join(repeated[:5])} more than once. Name each class once.")
    if len(wnids) != 100:
        raise UserError(f"Class list {path} names {len(wnids)} classes, expected 100.")
    return tuple(sorted(wnids))


def config_name(wnids: tuple[str, ...]) -> str:
    """A folder name for a class list, so that several can lie side by side."""
    if wnids == read_class_list():
        return "seed1993"
    return "list_" + hashlib.sha256("\n".join(wnids).encode()).hexdigest()[:8]


@contextlib.contextmanager
def open_contents(source: str | Path, class_list: str | None) -> Iterator[Contents]:
    wnids, path = read_class_list(class_list), Path(source).expanduser()
    if path.is_file():
        raise UserError(
            f"{path} is a file. Unpack ImageNet and give --from the folder that holds train/ and val/."
        )
    root = root_folder(path, "train")
    yield Contents(wnids, {"train": _split(root, "train", wnids), "test": _split(root, "val", wnids)})


def _split(root: Path, name: str, wnids: tuple[str, ...]) -> SplitContents:
    """Lists the wanted class folders only: walking all of ImageNet takes minutes on a network disk."""
    missing = [wnid for wnid in wnids if not (root / name / wnid).is_dir()]
    if missing:
        raise UserError(
            f"{root / name} lacks the folders of {len(missing)} of the {len(wnids)} classes wanted "
            f"({', '.join(missing[:3])}, ...). Expected {root / name / 'WNID' / 'IMAGE.JPEG'}."
        )
    names, labels = [], []
    for label, wnid in enumerate(wnids):
        for file_name in sorted(os.listdir(root / name / wnid)):
            if file_name.lower().endswith(_SUFFIXES):
                names.append(f"{name}/{wnid}/{file_name}")
                labels.append(label)

    def encoded(i: int) -> bytes:
        return checked_image((root / names[i]).read_bytes(), str(root / names[i]))

    return SplitContents(names, np.array(labels, np.int32), encoded)
