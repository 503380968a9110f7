"""Pickles written by others, read without running anything in them: arrays and plain containers only."""

import io
import pickle
from typing import Any

import numpy as np

from rose_jax.errors import UserError

# The array constructor, taken from an array: its module is numpy.core or numpy._core, by version of NumPy.
_RECONSTRUCT = np.empty(0).__reduce__()[0]

_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def load_arrays(data: bytes, name: str) -> dict[bytes, Any]:
    """The dict in a pickle of Python 2 or 3, its keys as bytes; `name` says where it was, for messages."""
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise UserError(f"{name} is truncated or damaged ({error}). Fetch it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{name} holds a {type(content).__name__}, not the dict expected. Fetch it again.")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise UserError(
                f"the pickle asks for {module}.{name}, which no file of this dataset contains. It was not "
                "loaded, as a pickle can run any program. Fetch the file again from its official address."
            )
        return _ADMITTED[module, name]
