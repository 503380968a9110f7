"""Random crops and flips of a batch [B, H, W, C]; each image draws its own."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

RATIO = (3 / 4, 4 / 3)  # width over height of a random resized crop
TRIES = 10


class Box(NamedTuple):
    """A window of each image, in whole pixels. Each int32 [B]."""

    top: Array
    left: Array
    height: Array
    width: Array


def random_crop(key: Array, images: Array, pad: int) -> Array:
    """Zero-pads every side by `pad`, then cuts a window of the old size anywhere. uint8."""
    corners = jax.random.randint(key, (images.shape[0], 2), 0, 2 * pad + 1)
    # Both are exact. CPUs are fast at copies; a TPU would make them image after image.
    return jax.lax.platform_dependent(
        images, corners, cpu=partial(crop_by_copies, pad=pad), default=partial(crop_by_products, pad=pad)
    )


def crop_by_copies(images: Array, corners: Array, pad: int) -> Array:
    """images: [B, H, W, C]; corners: int [B, 2], row and column in the padded image."""
    _, height, width, channels = images.shape
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))

    def cut(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (height, width, channels))

    return jax.vmap(cut)(padded, corners)


def crop_by_products(images: Array, corners: Array, pad: int) -> Array:
    """The same as two products with matrices of zeros and ones: bfloat16 holds all of 0..255 exactly.

    What lies in the padding meets no one, and so is 0. The channels stay beside the columns, [B, H, W C], because an axis
    of three would fill a few of a TPU's 128 lanes.
    """
    batch, height, width, channels = images.shape
    flat = images.reshape(batch, height, width * channels).astype(jnp.bfloat16)
    down = _shift_matrices(height, corners[:, 0] - pad)
    across = _shift_matrices(width * channels, channels * (corners[:, 1] - pad))
    rows = jnp.einsum("byi,bij->byj", down, flat)
    return jnp.einsum("byj,bxj->byx", rows, across).astype(images.dtype).reshape(images.shape)


def _shift_matrices(size: int, by: Array) -> Array:
    """bfloat16 [B, size, size]: 1 where the column is the row + by [B]."""
    place = jnp.arange(size)
    return (place[None, None, :] == place[None, :, None] + by[:, None, None]).astype(jnp.bfloat16)


def random_flip(key: Array, images: Array, probability: float = 0.5) -> Array:
    """Mirrors each image left to right with the given probability."""
    flipped = jax.random.bernoulli(key, probability, (images.shape[0],))
    return jnp.where(flipped[:, None, None, None], images[:, :, ::-1], images)


def random_box(key: Array, batch: int, height: int, width: int, scale: tuple[float, float]) -> Box:
    """torchvision's RandomResizedCrop: area U(scale), ratio log-uniform in RATIO, the first of ten that fits.

    If none fits, the largest central box with a ratio in RATIO: of a square image, all of it.
    """
    uniform = jax.random.uniform(key, (batch, TRIES + 1, 2))  # one draw: threefry is slow to compile
    tries, corner = uniform[:, :-1], uniform[:, -1]
    area = height * width * (scale[0] + (scale[1] - scale[0]) * tries[..., 0])
    low, high = map(math.log, RATIO)
    ratio = jnp.exp(low + (high - low) * tries[..., 1])
    widths, heights = jnp.round(jnp.sqrt(area * ratio)), jnp.round(jnp.sqrt(area / ratio))
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = jnp.argmax(fits, axis=1)[:, None]

    central_width = min(width, round(height * RATIO[1]))
    central_height = min(height, round(width / RATIO[0]))
    found = jnp.any(fits, axis=1)
    box_width = jnp.where(found, jnp.take_along_axis(widths, first, axis=1)[:, 0], central_width)
    box_height = jnp.where(found, jnp.take_along_axis(heights, first, axis=1)[:, 0], central_height)

    slack_y, slack_x = height - box_height, width - box_width
    top = jnp.where(found, jnp.floor(corner[:, 0] * (slack_y + 1)), slack_y // 2)
    left = jnp.where(found, jnp.floor(corner[:, 1] * (slack_x + 1)), slack_x // 2)
    return Box(*(part.astype(jnp.int32) for part in (top, left, box_height, box_width)))
