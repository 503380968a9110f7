"""Crops of any size resized to any other, as Pillow's bilinear Image.resize: antialiased where it shrinks."""

import jax.numpy as jnp
from jax import Array

from rose_jax.data.augment.geometry import Box


def resized_crop(images: Array, box: Box, size: int) -> Array:
    """Cuts each image's box and resizes it to size x size. uint8 [B, H, W, C] -> uint8 [B, size, size, C].

    Columns first, rounded to whole levels, then rows. As matrix products, which accelerators prefer to gathers.
    """
    across = _weights(box.left, box.width, images.shape[2], size)
    down = _weights(box.top, box.height, images.shape[1], size)
    rows = jnp.einsum("bxj,bijc->bixc", across, images.astype(jnp.float32), precision="highest")
    result = jnp.einsum("byi,bixc->byxc", down, jnp.floor(rows + 0.5), precision="highest")
    return jnp.floor(result + 0.5).astype(jnp.uint8)


def _weights(start: Array, length: Array, size_in: int, size_out: int) -> Array:
    """[B, out, in]: a triangle around each output's centre, as wide as the step between outputs but never
    narrower than a pixel, cut off at the box and normalised to sum 1."""
    scale = (length.astype(jnp.float32) / size_out)[:, None]
    centre = start.astype(jnp.float32)[:, None] + (jnp.arange(size_out)[None, :] + 0.5) * scale
    pixel = jnp.arange(size_in)
    distance = jnp.abs(pixel[None, None, :] + 0.5 - centre[:, :, None])
    weights = jnp.maximum(0.0, 1 - distance / jnp.maximum(scale, 1.0)[:, :, None])
    inside = (pixel[None, :] >= start[:, None]) & (pixel[None, :] < (start + length)[:, None])
    weights = jnp.where(inside[:, None, :], weights, 0.0)
    return weights / weights.sum(2, keepdims=True)
