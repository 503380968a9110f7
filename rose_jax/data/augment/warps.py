"""Pillow's rotation, translation and shear with a grey fill, for a batch in which each image has its own.

The warps a policy can draw are few and known beforehand. Their source maps are made once in NumPy, with Pillow's
arithmetic, so that a batch needs only a gather (on a TPU products with ones and zeros) and every pixel is placed as by Pillow.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

FILL = 128
LARGEST = 64 * 64  # pixels, for which every map is a matrix of so many rows and columns
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
    gathers = partial(warp_by_gathers, maps=maps)
    if images.shape[2] * images.shape[3] > LARGEST:
        return gathers(images, choice)
    # Both are exact. A TPU would fetch the pixels one after another, and its compiler has no estimate of how long that takes.
    products = partial(warp_by_products, maps=maps)
    return jax.lax.platform_dependent(images, choice, tpu=products, default=gathers)


def warp_by_gathers(images: Array, choice: Array, maps: SourceMap) -> Array:
    batch, _, height, width = images.shape
    row, column, fraction, inside = (jnp.asarray(part)[choice] for part in maps)  # each [B, H, W]

    # The three channels of a pixel are gathered as one integer: a third of the gathers.
    red, green, blue = (images[:, c].astype(jnp.int32) for c in range(3))
    packed = (red | green << 8 | blue << 16).reshape(batch, height * width)

    def tap(offset: int) -> Array:
        index = jnp.clip(row + offset, 0, height - 1) * width + column
        picked = jnp.take_along_axis(packed, index.reshape(batch, -1), axis=1, mode="promise_in_bounds")
        return picked.reshape(batch, height, width)

    taps = [tap(offset) for offset in _offsets(maps)]
    moved = [interpolate([(t >> 8 * channel) & 255 for t in taps], fraction) for channel in range(3)]
    return jnp.stack([jnp.where(inside, one, FILL) for one in moved], axis=1).astype(jnp.uint8)


def warp_by_products(images: Array, choice: Array, maps: SourceMap) -> Array:
    """All images moved by every map, a product with a matrix of zeros and ones each; then each image takes its own.

    bfloat16 holds all of 0..255 exactly, and a pixel is a sum of one term.
    """
    batch, channels, height, width = images.shape
    pixels = height * width
    flat = images.reshape(batch, channels, pixels)
    rows = flat.reshape(batch * channels, pixels).astype(jnp.bfloat16)
    one_hot = choice[:, None] == jnp.arange(len(maps.row))[None, :]

    def tap(offset: int) -> Array:
        picked = flat.astype(jnp.float32)
        for v, (row, column) in enumerate(zip(maps.row, maps.column, strict=True)):
            source = (np.clip(row + offset, 0, height - 1) * width + column).reshape(-1)
            if (offset and not maps.fraction[v].any()) or (source == np.arange(pixels)).all():
                continue  # a fraction of 0 is multiplied with whatever is there; or nothing moves
            matrix = (jnp.arange(pixels)[:, None] == jnp.asarray(source)[None, :]).astype(jnp.bfloat16)
            moved = jnp.dot(rows, matrix, preferred_element_type=jnp.float32)
            picked = jnp.where(one_hot[:, v, None, None], moved.reshape(flat.shape), picked)
        return picked

    def of_choice(part: np.ndarray) -> Array:
        """[V, H, W] -> float32 [B, 1, H W]."""
        table = jnp.asarray(part.reshape(len(part), pixels), jnp.float32)
        return jnp.dot(one_hot.astype(jnp.float32), table, precision="highest")[:, None]

    value = interpolate([tap(offset) for offset in _offsets(maps)], of_choice(maps.fraction))
    return jnp.where(of_choice(maps.inside) > 0, value, FILL).astype(jnp.uint8).reshape(images.shape)


def _offsets(maps: SourceMap) -> tuple[int, ...]:
    """Rows that a pixel is made of, about the one it comes from; only shears have fractions of rows."""
    return (-1, 0, 1, 2) if np.any(maps.fraction) else (0,)


def interpolate(taps: Sequence[Array], fraction: Array) -> Array:
    """Pillow's cubic convolution (a = -1), in the order of terms that leaves flat areas exact. One tap is a whole pixel."""
    if len(taps) == 1:
        return taps[0].astype(jnp.int32)
    above, here, below, further = (tap.astype(jnp.float32) for tap in taps)
    linear = below - above
    quadratic = 2 * (above - here) + below - further
    cubic = here - above + further - below
    value = here + fraction * (linear + fraction * (quadratic + fraction * cubic))
    return jnp.clip(value, 0, 255).astype(jnp.int32)


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
