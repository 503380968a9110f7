"""RoSE on dumped features: `python -m rose_jax.evolve features.npz [--out predictions.npz]`.

The file holds z_old [n, d], z_new [n, d], old_prototypes [k, d], new_prototypes [m, d] and, if wanted,
projector [d, d], labels [n], and for --metric evolved old_covariance and new_covariance [d, d]; see
`rose_jax.evolve_features` for what they mean.
"""

import argparse
import sys
import zipfile
from pathlib import Path

import numpy as np

from rose_jax import events
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError
from rose_jax.evolution.rose import SOLVERS
from rose_jax.evolve import baselines
from rose_jax.evolve.features import EvolvedFeatures, evolve_features
from rose_jax.evolve.inputs import labels_of, matrix, same_images
from rose_jax.evolve.metrics import METRICS
from rose_jax.runtime.files import check_file, write_arrays

REQUIRED = ("z_old", "z_new", "old_prototypes", "new_prototypes")
OPTIONAL = ("projector", "labels", "old_covariance", "new_covariance")
SWAPPED = (
    "warning: z_old and z_new fit better the other way round. z_old must come from the encoder before the last task, "
    "z_new from the one after it. If they are swapped, the labels below mean nothing."
)


def main(argv: list[str] | None = None) -> int:
    options = vars(_parser().parse_args(argv))
    out = Path(options.pop("out"))
    try:
        check_file("--out", out)  # before minutes of work
        arrays = read_features(Path(options.pop("features")))
        labels = arrays.pop("labels", None)
        for name in REQUIRED:
            matrix(name, arrays[name], "[rows, d]")
        same_images(arrays["z_old"], arrays["z_new"])
        if labels is not None:  # before the stream: a bad label must not cost its predictions
            classes = len(arrays["old_prototypes"]) + len(arrays["new_prototypes"])
            labels = labels_of(
                "labels", labels, len(arrays["z_new"]), classes, "the concatenation of old and new prototypes"
            )
        result = evolve_features(**arrays, **options)
        found = {"predictions": result.predictions, "prototypes": result.prototypes}
        if result.covariance is not None:
            found["covariance"] = result.covariance
        write_arrays(out, found)
    except (UserError, OSError) as error:
        print(f"rose_jax.evolve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rose_jax.evolve: interrupted; nothing was written.", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    if baselines.looks_swapped(arrays):
        print(SWAPPED, file=sys.stderr)
    lines = describe(result, len(arrays["old_prototypes"])) + beside_baselines(arrays, result.predictions, labels)
    print("\n".join([*lines, f"written: {out} ({', '.join(found)})"]))
    return 0


def read_features(path: Path) -> dict[str, np.ndarray]:
    """The arrays `evolve_features` takes, and `labels` if the file has them. Pickled objects are refused."""
    if not path.is_file():
        raise UserError(f"No such file: {path}.")
    if _from_torch(path):
        raise UserError(
            f"{path} was written by PyTorch (torch.save), which needs PyTorch to be read. Write an .npz there: "
            "numpy.savez(path, z_old=z_old.detach().cpu().numpy(), ...); examples/pytorch_features.py shows how."
        )
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


def _from_torch(path: Path) -> bool:
    """torch.save writes a zip archive with a pickle in it, and before version 1.6 a pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return path.suffix in (".pt", ".pth")


def describe(result: EvolvedFeatures, old_classes: int) -> list[str]:
    """A few lines about what happened."""
    counts, classes = result.counts, len(result.prototypes)
    lines = [f"{counts['images']} images, {old_classes} old and {classes - old_classes} new classes"]
    lines += events.told(counts)
    return lines + [f"note: {note}" for note in result.notes]


def beside_baselines(
    arrays: dict[str, np.ndarray], predictions: np.ndarray, labels: np.ndarray | None
) -> list[str]:
    """Accuracy without an evolution and with it; without labels, how many labels the evolution changed."""
    rows = baselines.predictions(arrays) | {"evolved": predictions}
    if labels is not None and labels.size:
        old_classes = len(arrays["old_prototypes"])
        lines = [f"{name:10}{accuracy(row, labels, old_classes)}" for name, row in rows.items()]
        return ["accuracy, % (prototypes as they were, moved once by the projector, evolved):", *lines]
    changed = {name: np.mean(row != predictions) for name, row in rows.items() if name != "evolved"}
    return [
        f"{share:.1%} of the labels differ from {name} prototypes'"
        for name, share in changed.items()
        if len(predictions)
    ]


def accuracy(predictions: np.ndarray, labels: np.ndarray, old_classes: int) -> str:
    """Over classes, over images, and old against new."""
    right = predictions == labels
    per_class = [right[labels == c].mean() for c in np.unique(labels)]
    old = labels < old_classes
    parts = {"images": right, "old classes": right[old], "new classes": right[~old]}
    shown = [f"{name} {100 * hits.mean():.2f}" for name, hits in parts.items() if hits.size]
    return f"class average {100 * np.mean(per_class):.2f}, {', '.join(shown)}"


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
    parser.add_argument("--metric", choices=METRICS, help="queue is recommended; the paper's cosine if not given")
    parser.add_argument("--metric-ridge", type=float, default=None, help="of the metric; chosen if not given")
    parser.add_argument("--evolve-every", type=int, default=1, help="only every k-th image enters the queue")
    return parser


if __name__ == "__main__":
    sys.exit(main())
