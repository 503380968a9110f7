"""Images that stay on the device: flat rows of uint8, reshaped when they are gathered.

A TPU pads the last two axes of an array to its tiles: [n, h, w, 3] would take many times the memory of [n, h*w*3].
"""

import math

import jax
import numpy as np


def flatten(images: np.ndarray) -> np.ndarray:
    """Square images uint8 [n, s, s, 3] -> [n, s * s * 3]."""
    return np.asarray(images).reshape(len(images), -1)


def gather(flat: jax.Array, rows: jax.Array | np.ndarray) -> jax.Array:
    """Rows [b] of the flat images -> [b, s, s, 3]; for use inside jit."""
    side = math.isqrt(flat.shape[1] // 3)
    return flat[rows].reshape(*rows.shape, side, side, 3)
