"""Pillow's rotation, translation and shear with a grey fill, for a batch in which each image has its own.

The warps a policy can draw are few and known beforehand. Their source maps are made once in NumPy, with Pillow's
arithmetic, so that a batch needs only a gather and every pixel is placed as by Pillow.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

FILL = 128
GEOMETRIC = ("rotate", "shear_y", "translate_x", "translate_y")

Warp = tuple[str, float]  # name (of GEOMETRIC) and signed strength: degrees, slope, or fraction of the image


class SourceMap(NamedTuple):
    """Where each output pixel comes from. All [H, W], or [V, H, W] for a stack of V maps."""

    row: np.ndarray  # int32
    column: np.ndarray  # int32
    fraction: np.ndarray  # float32: how far below `row`, 0 <= fraction < 1; interpolated by Pillow's cubic
    inside: np.ndarray  # bool: False is filled


def source_maps(warps: Sequence[Warp], height: int, width: int) -> SourceMap:
    """The maps of all these warps, stacked: [V, H, W]."""
    maps = [_source_map(name, strength, height, width) for name, strength in warps]
    return SourceMap(*(np.stack(part) for part in zip(*maps, strict=True)))


def warp(images: Array, maps: SourceMap, choice: Array) -> Array:
    """Moves image b by map choice[b]. images: uint8 [B, 3, H, W]; maps: [V, H, W]; choice: int [B]."""
    batch, _, height, width = images.shape
    row, column, fraction, inside = (jnp.asarray(part)[choice] for part in maps)  # each [B, H, W]

    # The three channels of a pixel are gathered as one integer: a third of the gathers.
    red, green, blue = (images[:, c].astype(jnp.int32) for c in range(3))
    packed = (red | green << 8 | blue << 16).reshape(batch, height * width)

    def tap(offset: int) -> Array:
        index = jnp.clip(row + offset, 0, height - 1) * width + column
        picked = jnp.take_along_axis(packed, index.reshape(batch, -1), axis=1, mode="promise_in_bounds")
        return picked.reshape(batch, height, width)

    # Where no map has fractions (only shears have), a pixel comes from one place.
    between = bool(np.any(maps.fraction))
    taps = [tap(offset) for offset in ((-1, 0, 1, 2) if between else (0,))]

    def interpolate(channel: int) -> Array:
        """Pillow's cubic convolution (a = -1), in the order of terms that leaves flat areas exact."""
        if not between:
            return jnp.where(inside, (taps[0] >> 8 * channel) & 255, FILL)
        above, here, below, further = (((t >> 8 * channel) & 255).astype(jnp.float32) for t in taps)
        linear = below - above
        quadratic = 2 * (above - here) + below - further
        cubic = here - above + further - below
        value = here + fraction * (linear + fraction * (quadratic + fraction * cubic))
        return jnp.where(inside, jnp.clip(value, 0, 255).astype(jnp.int32), FILL)

    return jnp.stack([interpolate(c) for c in range(3)], axis=1).astype(jnp.uint8)


def _source_map(name: str, strength: float, height: int, width: int) -> SourceMap:
    y, x = np.mgrid[:height, :width]
    row, column, fraction = y, x, np.zeros((height, width))
    if name == "rotate":
        row, column = _rotated(strength, height, width)
    elif name == "translate_x":
        column = np.floor(x + 0.5 + strength * width)
    elif name == "translate_y":
        row = np.floor(y + 0.5 + strength * height)
    elif name == "shear_y":
        exact = y + strength * (x + 0.5)  # pixel centres are at halves; those of y cancel
        row, fraction = np.floor(exact), exact - np.floor(exact)
    elif name != "identity":
        raise ValueError(f"{name!r} is not one of {GEOMETRIC}")
    nearest = np.floor(row + fraction + 0.5)
    inside = (nearest >= 0) & (nearest < height) & (column >= 0) & (column < width)
    column = column.clip(0, width - 1)
    return SourceMap(row.astype(np.int32), column.astype(np.int32), fraction.astype(np.float32), inside)


def _rotated(degrees: float, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Source rows and columns of a turn counter-clockwise about the centre, in Pillow's 16.16 fixed point."""
    angle = -np.radians(degrees % 360)
    cosine, sine = round(np.cos(angle), 15), round(np.sin(angle), 15)
    middle_x, middle_y = width / 2, height / 2
    offset_x = middle_x - cosine * middle_x - sine * middle_y
    offset_y = middle_y + sine * middle_x - cosine * middle_y

    def fixed(value: float) -> int:
        return int(np.floor(value * 65536 + 0.5))

    y, x = np.mgrid[:height, :width]
    column = fixed(offset_x + cosine / 2 + sine / 2) + fixed(cosine) * x + fixed(sine) * y
    row = fixed(offset_y - sine / 2 + cosine / 2) + fixed(-sine) * x + fixed(cosine) * y
    return row >> 16, column >> 16
