"""Command line that prepares a dataset:  python -m rose_jax.data.prepare DATASET --from PATH."""

import argparse
import contextlib
import fcntl
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rose_jax.data import sources
from rose_jax.data.prepare import archives, cifar100, imagenet100, tiny
from rose_jax.data.prepare.base import Contents, ImageBuilder, check_complete
from rose_jax.data.prepare.download import download
from rose_jax.errors import UserError, unknown

BUILDERS: dict[str, type[ImageBuilder]] = {
    "cifar100": cifar100.RoseCifar100,
    "tiny": tiny.RoseTiny,
    "imagenet100": imagenet100.RoseImagenet100,
}
PUBLISHED = {"cifar100": (cifar100.URL, cifar100.MD5), "tiny": (tiny.URL, tiny.MD5)}


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
    if name not in BUILDERS:
        raise unknown("dataset", name, sources.KNOWN)
    root = sources.data_folder(data_dir)
    prepared = sources.find_prepared(name, root, class_list, ours_only=True)
    if prepared is not None and not overwrite:
        dataset = sources.load(name, str(root), class_list=class_list)
        return f"{prepared} is prepared already ({_counts(dataset)}); --overwrite generates it again."
    path = Path(source).expanduser() if source else _fetch(name, root)
    start = time.monotonic()
    md5 = _check_md5(name, path) if path.is_file() else None
    with _open_contents(name, path, class_list) as contents:
        problems = check_complete(contents, BUILDERS[name], str(path))
        if problems and not partial:
            listed = "\n".join(f"  - {problem}" for problem in problems)
            raise UserError(
                f"{path} is not a complete copy of {name}:\n{listed}\n"
                "Fetch it again, or pass --partial to use what is there (accuracies will mean little)."
            )
        folder = _write(
            name, root, contents, {"source": str(path), "md5": md5, "partial": bool(problems)}, class_list
        )
    dataset = sources.load(name, str(root), class_list=class_list)
    seconds = time.monotonic() - start
    kind = "a partial copy of " if problems else ""
    return f"Prepared {kind}{name} from {path} into {folder} in {seconds:.0f} s: {_counts(dataset)}."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/prepare_data", description="Prepare a dataset for rose_jax.")
    parser.add_argument("dataset", help=f"one of {', '.join(sources.KNOWN)}")
    parser.add_argument("--from", dest="source", metavar="PATH", help="folder or archive; downloaded if not given")
    parser.add_argument("--data_dir", help=f"default ${sources.DATA_DIR_VARIABLE} or {sources.DEFAULT_DATA_DIR}")
    parser.add_argument("--class_list", metavar="FILE", help="imagenet100: another hundred wnids, one a line")
    parser.add_argument("--partial", action="store_true", help="accept wrong counts of images or classes")
    parser.add_argument("--overwrite", action="store_true", help="generate again what is prepared already")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        done = prepare(
            args.dataset,
            args.source,
            args.data_dir,
            class_list=args.class_list,
            partial=args.partial,
            overwrite=args.overwrite,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted; no incomplete dataset is left. Run the same command again.", file=sys.stderr)
        return 130
    print(done)
    return 0


def _open_contents(name: str, path: Path, class_list: str | None) -> AbstractContextManager[Contents]:
    if name == "imagenet100":
        return imagenet100.open_contents(path, class_list)
    return {"cifar100": cifar100.open_contents, "tiny": tiny.open_contents}[name](path)


def _write(name: str, root: Path, contents: Contents, provenance: dict[str, Any], class_list: str | None) -> Path:
    import tensorflow_datasets as tfds

    config = None
    if name == "imagenet100":
        wnids = imagenet100.read_class_list(class_list)
        config = tfds.core.BuilderConfig(name=imagenet100.config_name(wnids))
    with _staging(root, name) as staging:
        builder = BUILDERS[name](data_dir=str(staging), contents=contents, provenance=provenance, config=config)
        written = builder.write()
        folder = root / written.relative_to(staging)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():  # --overwrite: the old records go only now that the new ones are complete
            folder.rename(staging / "replaced")
        written.rename(folder)
    return folder


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


def _fetch(name: str, root: Path) -> Path:
    if name not in PUBLISHED:
        raise UserError(
            f"{name} has no public download: ImageNet needs an account at image-net.org. Then:\n"
            f"  scripts/prepare_data {name} --from FOLDER   (FOLDER holds train/WNID and val/WNID)"
        )
    url, md5 = PUBLISHED[name]
    return download(url, root / "downloads" / url.rsplit("/", 1)[1], md5)


def _check_md5(name: str, path: Path) -> str:
    md5 = archives.md5_of(path)
    if name in PUBLISHED and md5 != PUBLISHED[name][1]:
        logging.warning(
            "%s has md5 %s, the published archive %s: not the same file.", path, md5, PUBLISHED[name][1]
        )
    return md5


def _counts(dataset: sources.Dataset) -> str:
    return f"{len(dataset.train)} training and {len(dataset.test)} test images of {dataset.num_classes} classes"
