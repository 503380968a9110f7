"""A trained encoder as safetensors: `python -m rose_jax.export --workdir RUN [--out encoder.safetensors]`.

Names and layout are PyTorch's, so that a ResNet-18 loads there (examples/pytorch_encoder.py). Beside the weights are
`prototypes` [classes, d], as the row's test stream left them, and in the metadata what an image must go through.
"""

import argparse
import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rose_jax.errors import UserError
from rose_jax.inference import Model, load
from rose_jax.models import stem_of
from rose_jax.models.torch_names import state_dict
from rose_jax.runtime.files import check_file, write_atomic


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rose_jax.export", description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True, metavar="RUN", help="a trained run")
    parser.add_argument("--row", default="rose", help="whose encoder and prototypes (default: rose)")
    parser.add_argument("--stage", type=int, default=-1, help="0: after the first task; -1, the default: the last")
    parser.add_argument("--out", type=Path, default=Path("encoder.safetensors"), metavar="FILE")
    parser.add_argument("--data_dir", help="where the run's data lies, if the run has not ended")
    flags = parser.parse_args(arguments)
    try:
        check_file("--out", flags.out)
        model = load(flags.workdir, flags.row, flags.stage, data_dir=flags.data_dir)
        arrays = export(model, flags.out)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    numbers = sum(array.size for array in arrays.values())
    print(f"{len(arrays)} arrays, {numbers:,} numbers, {len(model.class_names)} classes: {flags.out}")
    return 0


def export(model: Model, path: Path) -> dict[str, np.ndarray]:
    """Writes the file and returns its arrays."""
    arrays = state_dict(model.snapshot.variables) | {"prototypes": model.prototypes.astype(np.float32)}
    options = model.config.model
    write_safetensors(
        path,
        arrays,
        {
            "encoder": options.encoder,
            "width": str(options.width),
            "stem": stem_of(options, model.image_size),
            "image_size": str(model.image_size),
            "enlarge": str(options.enlarge),  # to so many pixels a side, after all else; 0: not at all
            "crop": "center 7/8" if model.streamed else "central square",
            "pool": str(
                1 if model.streamed else model.config.data.pool
            ),  # so many pixels a side are averaged to one
            "mean": json.dumps(model.normalisation.mean),
            "std": json.dumps(model.normalisation.std),
            "class_names": json.dumps(model.class_names),
            "row": model.row,
            "stage": str(model.stage),
        },
    )
    return arrays


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Arrays as float32: the header's length (8 bytes), the header (JSON, filled up to 8 bytes), the numbers.

    The format is so plain that a dependency would be longer than its writer.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    plain = {name: np.ascontiguousarray(array, "<f4") for name, array in arrays.items()}
    offset = 0
    for name, array in plain.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = (array.tobytes() for array in plain.values())
    write_atomic(path, lambda file: file.writelines([struct.pack("<Q", len(text)), text, *numbers]))


if __name__ == "__main__":
    sys.exit(main())
