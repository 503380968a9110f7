"""CoTTA's augmentation (Wang et al., CVPR 2022) of float images [B, H, H, 3] in 0..1, inside jit.

Colours are jittered in random order, the image is padded by its edge, turned, moved, scaled and blurred, cut out of the
middle, flipped, and gets noise. All but the noise is drawn once for the whole batch, as in the authors' code, where
torchvision transforms a batch as one tensor.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

JITTER = {  # in the order of Draw.strength
    "brightness": (0.6, 1.4),
    "contrast": (0.7, 1.3),
    "saturation": (0.5, 1.5),
    "hue": (-0.06, 0.06),  # in turns
    "gamma": (0.7, 1.3),
}
DEGREES, SHIFT, SCALE = 15.0, 1 / 16, (0.9, 1.1)  # the shift is a part of the padded image
BLUR = (0.001, 0.5)  # sigma of a kernel of 5 pixels
RADIUS = 2
NOISE = 0.005
LUMA = (0.2989, 0.587, 0.114)


class Draw(NamedTuple):
    """What is drawn once for a batch."""

    order: Array  # int32 [5], of JITTER
    strength: Array  # float32 [5]
    radians: Array  # []
    shift: Array  # [2] whole pixels, right and down
    scale: Array  # []
    sigma: Array  # []
    flip: Array  # bool []


def augment(key: Array, images: Array) -> Array:
    """One augmentation of a batch: float [B, H, H, 3] in 0..1 -> the same."""
    draw_key, noise_key = jax.random.split(key)
    noise = NOISE * jax.random.normal(noise_key, images.shape, images.dtype)
    return jnp.clip(apply(jnp.clip(images, 0, 1), draw(draw_key, images.shape[1])) + noise, 0, 1)


def draw(key: Array, size: int) -> Draw:
    order_key, key = jax.random.split(key)
    order = jax.random.permutation(order_key, len(JITTER))
    uniform = jax.random.uniform(key, (len(JITTER) + 6,))
    low, high = (jnp.asarray(ends, jnp.float32) for ends in zip(*JITTER.values(), strict=True))
    strength = low + (high - low) * uniform[:5]
    angle, right, down, scale, sigma, flip = uniform[5:]
    furthest = SHIFT * (size + 2 * (size // 2))
    shift = jnp.round(furthest * (2 * jnp.stack([right, down]) - 1))
    return Draw(
        order,
        strength,
        math.radians(DEGREES) * (2 * angle - 1),
        shift,
        SCALE[0] + (SCALE[1] - SCALE[0]) * scale,
        BLUR[0] + (BLUR[1] - BLUR[0]) * sigma,
        flip < 0.5,
    )


def apply(images: Array, drawn: Draw) -> Array:
    """All of the augmentation but the noise. images: float [B, H, H, 3] in 0..1."""
    images = blur(warp(jitter(images, drawn.order, drawn.strength), drawn), drawn.sigma)
    return jnp.where(drawn.flip, images[:, :, ::-1], images)


def jitter(images: Array, order: Array, strength: Array) -> Array:
    """The five changes of colour in this order. The branches are real: all images of the batch take the same one."""
    changes = (brightness, contrast, saturation, hue, gamma)

    def change(images: Array, which: Array) -> tuple[Array, None]:
        return jax.lax.switch(which, changes, images, strength[which]), None

    return jax.lax.scan(change, images, order)[0]


def brightness(images: Array, factor: Array) -> Array:
    return jnp.clip(factor * images, 0, 1)


def contrast(images: Array, factor: Array) -> Array:
    """Away from the mean luminance of each image."""
    return _blend(luminance(images).mean((1, 2, 3), keepdims=True), images, factor)


def saturation(images: Array, factor: Array) -> Array:
    return _blend(luminance(images), images, factor)


def gamma(images: Array, exponent: Array) -> Array:
    """Clamped before: 0 ** exponent is left alone, and what lies above 1 would grow."""
    return jnp.clip(images, 1e-8, 1.0) ** exponent


def hue(images: Array, turns: Array) -> Array:
    """HSV with the hue moved by so many turns."""
    red, green, blue = images[..., 0], images[..., 1], images[..., 2]
    top, bottom = images.max(-1), images.min(-1)
    span = top - bottom
    divisor = jnp.where(span == 0, 1, span)
    sixth = jnp.where(green == top, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    sixth = jnp.where(red == top, (green - blue) / divisor, sixth)
    ratio = span / jnp.where(top == 0, 1, top)
    moved = 6 * jnp.mod(sixth / 6 + turns, 1.0)

    def channel(offset: float) -> Array:
        """V - V S max(0, min(k, 4 - k, 1)) with k = (offset + H) mod 6."""
        k = jnp.mod(offset + moved, 6.0)
        return top - top * ratio * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)

    return jnp.clip(jnp.stack([channel(5.0), channel(3.0), channel(1.0)], axis=-1), 0, 1)


def luminance(images: Array) -> Array:
    """[B, H, H, 3] -> [B, H, H, 1]."""
    return jnp.sum(images * jnp.asarray(LUMA, images.dtype)[None, None, None, :], -1, keepdims=True)


def warp(images: Array, drawn: Draw) -> Array:
    """Turned, moved and scaled about the centre, bilinearly, black beyond half an image of edge padding.

    [B, H, H, 3] -> [B, H + 4, H + 4, 3]: the middle, with the rim that the blur reads.
    """
    batch, size = images.shape[:2]
    pad = size // 2
    place = jnp.arange(-RADIUS, size + RADIUS) + 0.5 - size / 2  # pixel centres, 0 in the middle
    right, down = place[None, :] - drawn.shift[0], place[:, None] - drawn.shift[1]
    cosine, sine = jnp.cos(drawn.radians), jnp.sin(drawn.radians)
    column = (cosine * right + sine * down) / drawn.scale + size / 2 - 0.5
    row = (cosine * down - sine * right) / drawn.scale + size / 2 - 0.5
    rows = images.transpose(1, 2, 0, 3).reshape(size * size, -1)  # gathered by whole pixels, all images at once
    result = jnp.zeros((), images.dtype)
    for y, weight_y in _taps(row):
        for x, weight_x in _taps(column):
            inside = (y >= -pad) & (y < size + pad) & (x >= -pad) & (x < size + pad)
            index = jnp.clip(y, 0, size - 1) * size + jnp.clip(x, 0, size - 1)
            weight = jnp.where(inside, weight_y * weight_x, 0).astype(images.dtype)
            result = result + weight.reshape(-1, 1) * rows[index.reshape(-1)]
    side = size + 2 * RADIUS
    return result.reshape(side, side, batch, 3).transpose(2, 0, 1, 3)


def blur(images: Array, sigma: Array) -> Array:
    """A Gaussian of 5 x 5 pixels, without padding: [B, H + 4, H + 4, 3] -> [B, H, H, 3]."""
    offsets = jnp.arange(-RADIUS, RADIUS + 1)
    weights = jnp.exp(-0.5 * jnp.square(offsets / sigma)).astype(images.dtype)
    weights = weights / weights.sum()

    def along(cut: Callable[[int], Array]) -> Array:
        return sum((weights[k] * cut(k) for k in range(1, 2 * RADIUS + 1)), start=weights[0] * cut(0))

    size = images.shape[1] - 2 * RADIUS
    images = along(lambda k: images[:, k : k + size])
    return along(lambda k: images[:, :, k : k + size])


def _blend(degenerate: Array, images: Array, factor: Array) -> Array:
    return jnp.clip(factor * images + (1 - factor) * degenerate, 0, 1)


def _taps(exact: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The two whole numbers around each position, and their weights."""
    below = jnp.floor(exact)
    part = exact - below
    first = below.astype(jnp.int32)
    return (first, 1 - part), (first + 1, part)
