"""Command line that prepares a dataset:  python -m rose_jax.data.prepare DATASET --from PATH."""

import argparse
import contextlib
import fcntl
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rose_jax.data import sources
from rose_jax.data.prepare import cifar100, imagenet100, tiny
from rose_jax.data.prepare.base import VERSION, RawSet, incompleteness, write
from rose_jax.data.prepare.download import download, md5_of
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
        raise unknown("dataset", name, sources.KNOWN)
    raw, root = SETS[name], sources.data_folder(data_dir)
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
        folder = sources.our_folder(name, root, class_list) / VERSION
        config = folder.parent.name if name == "imagenet100" else None  # its class list
        provenance = {"source": str(path), "md5": md5, "partial": bool(problems)}
        with _staging(root, name) as staging:
            written = staging / folder.relative_to(root)
            write(contents, written, sources.KNOWN[name].prepared, config, provenance)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if folder.exists():  # --overwrite: the old records go only now that the new ones are complete
                folder.rename(staging / "replaced")
            written.rename(folder)
    dataset = sources.load(name, str(root), class_list=class_list)
    seconds = time.monotonic() - start
    kind = "a partial copy of " if problems else ""
    return f"Prepared {kind}{name} from {path} into {folder} in {seconds:.0f} s: {_counts(dataset)}."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/prepare_data", description="Prepare a dataset for rose_jax.")
    parser.add_argument("name", metavar="dataset", help=f"one of {', '.join(sources.KNOWN)}")
    parser.add_argument("--from", dest="source", metavar="PATH", help="folder or archive; downloaded if not given")
    parser.add_argument("--data_dir", help=f"default ${sources.DATA_DIR_VARIABLE} or {sources.DEFAULT_DATA_DIR}")
    parser.add_argument("--class_list", metavar="FILE", help="imagenet100: another hundred wnids, one a line")
    parser.add_argument("--partial", action="store_true", help="accept wrong counts of images or classes")
    parser.add_argument("--overwrite", action="store_true", help="generate again what is prepared already")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        print(prepare(**vars(args)))
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
