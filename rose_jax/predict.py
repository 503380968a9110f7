"""Labels for new images from a finished run: `python -m rose_jax.predict --workdir RUN IMAGES...`.

IMAGES are files or folders. With --evolve the images themselves move the prototypes as they stream by, in the order
given (files of a folder by name).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rose_jax.data.prepare.folder import image_files
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError
from rose_jax.experiment import cache_compilations
from rose_jax.inference import Model, Prediction, load
from rose_jax.report.tables import csv_text
from rose_jax.runtime.files import check_file, write_arrays, write_text


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _parser().parse_args(arguments)
    try:
        if flags.state and not flags.evolve:
            raise UserError("--state is for --evolve: without it there is no state.")
        if flags.top < 1:
            raise UserError(f"--top is {flags.top}; it must be 1 or more.")
        for option in ("out", "features", "state"):  # before the work, and before a state has moved on
            if getattr(flags, option):
                check_file(f"--{option}", Path(getattr(flags, option)))
        files = listed(flags.images)
        cache_compilations(flags.workdir)
        model = load(flags.workdir, flags.row, flags.stage, data_dir=flags.data_dir)
        _label(model, files, flags)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing was written, and a --state is as it was.", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return 0


def listed(images: Sequence[Path]) -> list[Path]:
    """Files as they are named, of folders every image below."""
    found: list[Path] = []
    for path in images:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        below = image_files(path) if path.is_dir() else [path]
        if not below:
            raise UserError(f"{path} holds no image that Pillow reads.")
        found += below
    return found


def _label(model: Model, files: Sequence[Path], flags: argparse.Namespace) -> None:
    state = Path(flags.state) if flags.state else None
    evolving = model.evolve(state if state and state.exists() else None) if flags.evolve else None
    rows: list[tuple[str, ...]] = []
    features: list[np.ndarray] = []
    readable: list[str] = []
    for batch, images in _read(model, files):
        found = (evolving or model).predict(images)
        rows += [(str(file), *_best(model, found, i, flags.top)) for i, file in batch]
        if flags.features:
            features.append(model.encode(images))
            readable += [str(file) for i, file in batch if i >= 0]
    if flags.features:
        write_arrays(Path(flags.features), {"features": np.concatenate(features), "files": np.array(readable)})
    titles = [title for k in range(flags.top) for title in (f"class_{k + 1}", f"score_{k + 1}")]
    header = ("image", *(("class", "score") if flags.top == 1 else titles))
    if flags.out:
        write_text(Path(flags.out), csv_text([header, *rows]))
        print(f"{len(rows)} images, {len({row[1] for row in rows if row[1]})} classes: {flags.out}")
    else:
        print(csv_text([header, *rows]), end="")
    if evolving and state:  # last: a state that has moved on without its labels could not be gone back to
        evolving.save(state)
        print(f"State after {evolving.position} images: {state}", file=sys.stderr)


def _read(model: Model, files: Sequence[Path]) -> Iterator[tuple[list[tuple[int, Path]], np.ndarray]]:
    """Batches of files and their images; of a file that does not decode only a message is given, and no label."""
    size = model.config.test.batch_size
    batch: list[tuple[int, Path]] = []
    images: list[np.ndarray] = []
    for file in files:
        try:
            images.append(model.read([file])[0])
            batch.append((len(images) - 1, file))
        except UserError as error:
            print(f"no label: {error}", file=sys.stderr)
            batch.append((-1, file))
        if len(images) == size:
            yield batch, np.stack(images)
            batch, images = [], []
    if batch:
        yield batch, np.stack(images) if images else np.empty((0, *model.parts.image_shape), np.uint8)


def _best(model: Model, found: Prediction, i: int, top: int) -> list[str]:
    """Names and scores of the best classes of image i; empty where there is none."""
    if i < 0 or found.labels[i] < 0:
        return ["", ""] * top
    order = np.argsort(-found.scores[i], kind="stable")[:top]
    cells = [cell for k in order for cell in (model.class_names[k], f"{found.scores[i, k]:.4f}")]
    return cells + ["", ""] * (top - len(order))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rose_jax.predict", description=__doc__)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGES", help="files or folders")
    parser.add_argument("--workdir", type=Path, required=True, metavar="RUN", help="a trained run")
    parser.add_argument("--row", default="rose", help="a row that the run has scored (default: rose)")
    parser.add_argument("--stage", type=int, default=-1, help="0: after the first task; -1, the default: the last")
    parser.add_argument("--evolve", action="store_true", help="let the images move the prototypes")
    parser.add_argument(
        "--state", metavar="FILE", help="with --evolve: go on from it if it is there, and save there"
    )
    parser.add_argument("--top", type=int, default=1, help="so many best classes of each image")
    parser.add_argument("--out", metavar="FILE", help="labels as CSV; without it they are printed")
    parser.add_argument("--features", metavar="FILE", help="also write features [n, d] and files, as .npz")
    parser.add_argument("--data_dir", help="where the run's data lies, if a row needs it and it has moved")
    return parser


if __name__ == "__main__":
    sys.exit(main())
