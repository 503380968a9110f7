"""RoSE on dumped features: `python -m rose_jax.evolve features.npz [--out predictions.npz]`.

The file holds z_old [n, d], z_new [n, d], old_prototypes [k, d], new_prototypes [m, d] and, if wanted,
projector [d, d] and labels [n]; see `rose_jax.evolve_features` for what they mean.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from rose_jax import events
from rose_jax.errors import UserError
from rose_jax.evolution.features import EvolvedFeatures, evolve_features
from rose_jax.evolution.rose import SOLVERS
from rose_jax.runtime.files import check_file, write_arrays

REQUIRED = ("z_old", "z_new", "old_prototypes", "new_prototypes")
OPTIONAL = ("projector", "labels")


def main(argv: list[str] | None = None) -> int:
    options = vars(_parser().parse_args(argv))
    out = Path(options.pop("out"))
    try:
        check_file("--out", out)  # before minutes of work
        arrays = read_features(Path(options.pop("features")))
        labels = arrays.pop("labels", None)
        result = evolve_features(**arrays, **options)
        lines = describe(result, labels, len(arrays["old_prototypes"]))
        write_arrays(out, {"predictions": result.predictions, "prototypes": result.prototypes})
    except (UserError, OSError) as error:
        print(f"rose_jax.evolve: {error}", file=sys.stderr)
        return 2
    print("\n".join([*lines, f"written: {out} (predictions, prototypes)"]))
    return 0


def read_features(path: Path) -> dict[str, np.ndarray]:
    """The arrays `evolve_features` takes, and `labels` if the file has them. Pickled objects are refused."""
    if not path.is_file():
        raise UserError(f"No such file: {path}.")
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:  # zipfile, zlib and NumPy raise different ones
        raise UserError(f"{path} is not an .npz file ({error}). Write one with numpy.savez.") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise UserError(
            f"{path} holds one bare array. Write an .npz with numpy.savez, keys {', '.join(REQUIRED)}."
        )
    with file:
        missing = [name for name in REQUIRED if name not in file.files]
        if missing:
            raise UserError(
                f"{path} lacks {', '.join(missing)}. It has {', '.join(file.files) or 'nothing'}; "
                f"expected {', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}."
            )
        arrays = {}
        for name in (*REQUIRED, *(name for name in OPTIONAL if name in file.files)):
            try:
                arrays[name] = file[name]
            except Exception as error:
                raise UserError(
                    f"{path}: {name} cannot be read ({error}). Save plain numeric arrays; objects are refused."
                ) from error
    return arrays


def describe(result: EvolvedFeatures, labels: np.ndarray | None, old_classes: int) -> list[str]:
    """A few lines about the outcome; with labels, accuracy over images, over classes, and old against new."""
    counts, classes = result.counts, len(result.prototypes)
    lines = [f"{counts['images']} images, {old_classes} old and {classes - old_classes} new classes"]
    lines += events.told(counts)
    lines += [f"note: {note}" for note in result.notes]
    if labels is None:
        return lines
    if labels.shape != result.predictions.shape or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"labels has shape {labels.shape} and type {labels.dtype}, expected integers of shape [n] = "
            f"{result.predictions.shape}."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(
            f"labels run from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}: they index the "
            "concatenation of old and new prototypes."
        )
    right = result.predictions == labels
    per_class = [right[labels == c].mean() for c in np.unique(labels)]
    old = labels < old_classes
    parts = {"images": right, "old classes": right[old], "new classes": right[~old]}
    shown = [f"{name} {100 * hits.mean():.2f}" for name, hits in parts.items() if hits.size]
    if per_class:
        lines.append(f"accuracy (%): class average {100 * np.mean(per_class):.2f}, {', '.join(shown)}")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rose_jax.evolve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", help="the .npz file with the arrays above")
    parser.add_argument("--out", default="predictions.npz", help="where predictions and prototypes go")
    parser.add_argument("--capacity", type=int, default=3000, help="pairs in the queue, S")
    parser.add_argument("--alpha", type=float, default=0.2, help="noise of the pseudo-features")
    parser.add_argument("--seed", type=int, default=0, help="of the pseudo-features")
    parser.add_argument("--granularity", type=int, default=1, help="images per update; 1 is the paper")
    parser.add_argument("--solver", choices=SOLVERS, default="blocked")
    parser.add_argument("--ridge", type=float, default=None, help="relative ridge; chosen if not given")
    parser.add_argument("--evolve-every", type=int, default=1, help="only every k-th image enters the queue")
    return parser


if __name__ == "__main__":
    sys.exit(main())
