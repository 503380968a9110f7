"""Command line that prepares a dataset:  python -m rose_jax.data.prepare DATASET --from PATH."""

import argparse
import contextlib
import fcntl
import logging
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rose_jax.data import own, sources
from rose_jax.data.prepare import cifar100, folder, imagenet100, npz, tiny
from rose_jax.data.prepare.base import VERSION, Contents, RawSet, incompleteness, write
from rose_jax.data.prepare.download import download, md5_of
from rose_jax.data.records import DATA_DIR_VARIABLE, DEFAULT_DATA_DIR, data_folder
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError, unknown
from rose_jax.runtime.files import check_folder

SETS = {
    "cifar100": RawSet(
        cifar100.open_contents,
        {"train": (500, 500), "test": (100, 100)},
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",  # as published beside it
    ),
    "tiny": RawSet(
        tiny.open_contents,
        {"train": (500, 500), "test": (50, 50)},
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
    ),
    "imagenet100": RawSet(imagenet100.open_contents, {"train": (732, 1300), "test": (50, 50)}),  # of ILSVRC 2012
}


def prepare(
    name: str,
    source: str | None = None,
    data_dir: str | None = None,
    *,
    class_list: str | None = None,
    partial: bool = False,
    overwrite: bool = False,
) -> str:
    """Prepares the dataset and its decoded cache; returns what was done, in a sentence or two."""
    if name == "digits":
        return "digits needs no preparation: it ships inside scikit-learn."
    if name not in SETS:
        raise unknown("dataset", name, [*sources.KNOWN, "folder"])
    raw, root = SETS[name], data_folder(data_dir)
    prepared = sources.find_prepared(name, root, class_list, ours_only=True)
    if prepared is not None and not overwrite:
        dataset = sources.load(name, str(root), class_list=class_list)
        return f"{prepared} is prepared already ({_counts(dataset)}); --overwrite generates it again."
    check_folder("--data_dir", root)
    path = Path(source).expanduser() if source else _fetch(name, raw, root)
    start = time.monotonic()
    md5 = md5_of(path) if path.is_file() else None
    if md5 and raw.md5 and md5 != raw.md5:
        logging.warning("%s has md5 %s, the published archive %s: not the same file.", path, md5, raw.md5)
    with raw.open(path, class_list) as contents:
        problems = incompleteness(contents, raw, sources.KNOWN[name].num_classes, str(path))
        if problems and not partial:
            listed = "\n".join(f"  - {problem}" for problem in problems)
            raise UserError(
                f"{path} is not a complete copy of {name}:\n{listed}\n"
                "Fetch it again, or pass --partial to use what is there (accuracies will mean little)."
            )
        target = sources.our_folder(name, root, class_list) / VERSION
        config = target.parent.name if name == "imagenet100" else None  # its class list
        provenance = {"source": str(path), "md5": md5, "partial": bool(problems)}
        _store(contents, target, root, name, sources.KNOWN[name].prepared, config, provenance)
    dataset = sources.load(name, str(root), class_list=class_list)
    seconds = time.monotonic() - start
    kind = "a partial copy of " if problems else ""
    return f"Prepared {kind}{name} from {path} into {target} in {seconds:.0f} s: {_counts(dataset)}."


def prepare_own(
    source: str | None,
    data_dir: str | None = None,
    *,
    own_name: str | None = None,
    size: int = own.DEFAULT_SIZE,
    test: float = 0.2,
    partial: bool = False,
    overwrite: bool = False,
) -> str:
    """Prepares a folder of images, or an .npz file, under a name; returns what was done and how to train on it."""
    if source is None:
        raise UserError("Give --from: a folder with a folder of images for each class, or an .npz file.")
    if size < 8:
        raise UserError(f"--size is {size}; it must be at least 8 pixels a side.")
    path, root = Path(source).expanduser().resolve(), data_folder(data_dir)
    name = own_name or re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem if path.is_file() else path.name).strip("_.-")
    target = root / own.folder_name(name) / VERSION
    if target.exists() and not overwrite:
        raise UserError(f"There is a set {name!r} in {target}. Give another --name, or --overwrite to replace it.")
    if not path.exists():
        raise UserError(f"{path} does not exist. Give --from a folder of images or an .npz file.")
    check_folder("--data_dir", root)
    start = time.monotonic()
    if path.suffix == ".npz":
        contents = npz.contents(path, size)
    else:
        contents = folder.contents(path, size, test, own.RESIDENT_BYTES, skip_damaged=partial)
    _store(contents, target, root, name, target.parent.name, None, {"source": str(path), "size": size})
    dataset = sources.load("folder", str(root), own_name=name)
    where = f" --config.data.dir={root}" if data_dir else ""
    kept = "are decoded while training" if dataset.streamed else "stay in memory"
    return (
        f"Prepared {name} from {path} into {target} in {time.monotonic() - start:.0f} s: {_counts(dataset)}, "
        f"{size} pixels a side, which {kept}. To train on it:\n"
        f"  python -m rose_jax.main --config configs/folder.py --config.data.name={name}{where} --config.scenario.tasks=4"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/prepare_data", description="Prepare a dataset for rose_jax.")
    parser.add_argument(
        "name", metavar="dataset", help=f"one of {', '.join(sources.KNOWN)}; or folder: your images"
    )
    parser.add_argument("--from", dest="source", metavar="PATH", help="folder or archive; downloaded if not given")
    parser.add_argument("--data_dir", help=f"default ${DATA_DIR_VARIABLE} or {DEFAULT_DATA_DIR}")
    parser.add_argument("--class_list", metavar="FILE", help="imagenet100: another hundred wnids, one a line")
    parser.add_argument("--name", dest="own_name", help="folder: what the set is called; default: as the folder")
    parser.add_argument("--size", type=int, help=f"folder: pixels a side, default {own.DEFAULT_SIZE}")
    parser.add_argument("--test", type=float, help="folder: share of test images, where it has none; default 0.2")
    parser.add_argument(
        "--partial", action="store_true", help="accept wrong counts; folder: leave out images that do not decode"
    )
    parser.add_argument("--overwrite", action="store_true", help="generate again what is prepared already")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    given = {key: value for key, value in vars(args).items() if value is not None}
    try:
        if given["name"] == "folder":
            _refuse(given, ("class_list",), "imagenet100")
            print(prepare_own(given.pop("source", None), **{k: v for k, v in given.items() if k != "name"}))
        else:
            _refuse(given, ("own_name", "size", "test"), "folder")
            print(prepare(**given))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"error: {error}. No incomplete dataset is left; solve that and run the same command.", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; no incomplete dataset is left. Run the same command again.", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return 0


def _refuse(given: dict[str, Any], keys: tuple[str, ...], dataset: str) -> None:
    """Options of another dataset than the one that is prepared."""
    for key in keys:
        if key in given:
            raise UserError(f"--{key.removeprefix('own_')} is for `scripts/prepare_data {dataset}`. Leave it out.")


def _store(
    contents: Contents,
    folder: Path,
    root: Path,
    name: str,
    builder: str,
    config: str | None,
    provenance: dict[str, Any],
) -> None:
    """Writes the records beside their place and then moves them there, in place of old ones if there are any."""
    with _staging(root, name) as staging:
        written = staging / folder.relative_to(root)
        write(contents, written, builder, config, provenance)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():  # --overwrite: the old records go only now that the new ones are complete
            folder.rename(staging / "replaced")
        written.rename(folder)


@contextlib.contextmanager
def _staging(root: Path, name: str) -> Iterator[Path]:
    """A locked folder beside the prepared sets; what a killed run left in it is removed."""
    root.mkdir(parents=True, exist_ok=True)
    staging = root / f".incomplete-{name}"
    with (root / f".incomplete-{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"Another run is preparing {name} in {root}. Wait for it, or end it.") from error
        shutil.rmtree(staging, ignore_errors=True)
        try:
            yield staging
        finally:
            # The lock file stays: once removed, two later runs could each lock a file of that name.
            shutil.rmtree(staging, ignore_errors=True)


def _fetch(name: str, raw: RawSet, root: Path) -> Path:
    if not raw.url:
        raise UserError(
            f"{name} has no public download: ImageNet needs an account at image-net.org. Then:\n"
            f"  scripts/prepare_data {name} --from FOLDER   (FOLDER holds train/WNID and val/WNID)"
        )
    return download(raw.url, root / "downloads" / raw.url.rsplit("/", 1)[1], raw.md5)


def _counts(dataset: sources.Dataset) -> str:
    return f"{len(dataset.train)} training and {len(dataset.test)} test images of {dataset.num_classes} classes"
