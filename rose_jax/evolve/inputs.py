"""Checks of a caller's arrays: one clear error for each that cannot be used."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from rose_jax.errors import UserError
from rose_jax.options import LARGEST_FLOAT


def matrix(name: str, array: Any, expected: str, dim: int | None = None) -> Any:
    """The array, unchanged; an error if it is not a matrix of numbers with `dim` columns."""
    if not isinstance(array, (np.ndarray, Array)):
        try:
            array = np.asarray(array)
        except (ValueError, TypeError, RuntimeError) as error:  # RuntimeError: a torch tensor that requires grad
            raise UserError(
                f"{name} is not an array ({error}). Expected shape {expected}.{_torch(array)}"
            ) from error
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise UserError(f"{name} holds {array.dtype}, expected real numbers of shape {expected}.")
    if array.ndim != 2:
        raise UserError(f"{name} has shape {array.shape}, expected {expected}.")
    if dim is not None and array.shape[1] != dim:
        raise UserError(
            f"{name} has shape {array.shape}, expected {expected} with d={dim}, the dimension of old_prototypes."
        )
    return array


def _torch(value: Any) -> str:
    from_torch = type(value).__module__.split(".")[0] == "torch"
    return " Of a torch tensor pass x.detach().cpu().float()." if from_torch else ""


def square(name: str, array: Any, dim: int) -> np.ndarray | Array:
    """A [d, d] matrix in float32, finite."""
    found = float32(matrix(name, array, "[d, d]", dim))
    if found.shape != (dim, dim):
        raise UserError(f"{name} has shape {found.shape}, expected [d, d] = {(dim, dim)}.")
    return finite(name, found)


def finite(name: str, array: Any) -> Any:
    import jax

    if not isinstance(array, jax.core.Tracer) and not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or Inf; every entry of {array.shape} must be finite.")
    return array


def not_negative(name: str, value: Any) -> None:
    """A number from 0 to the largest of float32, in which it is used."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (number and 0 <= value <= LARGEST_FLOAT):  # false for nan
        raise UserError(f"{name} must be a finite number and not negative, not {value!r}.")


def same_images(z_old: Any, z_new: Any) -> None:
    if z_old.shape != z_new.shape:
        raise UserError(
            f"z_old has shape {z_old.shape} and z_new {z_new.shape}; expected the same [n, d], row i of both "
            "from the same image."
        )


def labels_of(name: str, labels: Any, images: int, classes: int, index: str) -> np.ndarray:
    """Integers [n] from 0 to classes - 1; index: what they count."""
    labels = np.asarray(labels)
    if labels.shape != (images,) or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"{name} has shape {labels.shape} and type {labels.dtype}, expected integers of shape [n] = {(images,)}."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(
            f"{name} run from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}: they index {index}."
        )
    return labels


def float32(array: Any) -> Any:
    if isinstance(array, Array):
        return array.astype(jnp.float32)
    with np.errstate(over="ignore"):  # overflow becomes Inf, and such a row is counted as bad
        return array.astype(np.float32)
