"""Pillow's colour operations on uint8 batches [B, 3, H, W], each image with its own strength [B, 1, 1, 1].

Results are whole grey levels, rounded as Pillow rounds them. Channels come first, because XLA's CPU loops run along
the last axis, and an axis of three would be slow.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

LEVELS = 256


def jitter_brightness(key: Array, images: Array, amount: float) -> Array:
    """torchvision's ColorJitter(brightness=amount), whatever the order of axes after the first."""
    return blend(jnp.zeros_like(images), images, random_factor(key, images.shape[0], amount))


def random_factor(key: Array, batch: int, amount: float) -> Array:
    """What torchvision's ColorJitter draws: U(max(0, 1 - amount), 1 + amount) for each image. -> [B, 1, 1, 1]."""
    return jax.random.uniform(key, (batch, 1, 1, 1), minval=max(0.0, 1 - amount), maxval=1 + amount)


def blend(degenerate: Array, images: Array, factor: Array) -> Array:
    """Image.blend: degenerate + factor * (image - degenerate), clipped to 0..255, its fraction dropped.

    ImageEnhance is this with different degenerates: black for brightness, `mean_luminance` for contrast,
    `luminance` for colour, `smooth` for sharpness. Factor 0 gives the degenerate, 1 the image; 2 overshoots.
    """
    start = degenerate.astype(jnp.float32)
    return _to_level(start + factor * (images.astype(jnp.float32) - start))


def luminance(images: Array) -> Array:
    """Image.convert("L"): ITU-R 601-2 luma in 16-bit fixed point. -> uint8 [B, 1, H, W]."""
    red, green, blue = (images[:, c : c + 1].astype(jnp.int32) for c in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(jnp.uint8)


def mean_luminance(images: Array) -> Array:
    """The one grey that ImageEnhance.Contrast fades to: mean luminance, rounded. -> uint8 [B, 1, 1, 1]."""
    mean = jnp.mean(luminance(images).astype(jnp.float32), axis=(1, 2, 3), keepdims=True)
    return jnp.floor(mean + 0.5).astype(jnp.uint8)


def smooth(images: Array) -> Array:
    """ImageFilter.SMOOTH: (sum of the 3x3 window + 4 * centre) / 13, rounded; border pixels stay."""
    # Both are exact. On a TPU, shifting an image by a pixel is dearer than a product.
    return jax.lax.platform_dependent(images, cpu=smooth_by_slices, default=smooth_by_products)


def smooth_by_slices(images: Array) -> Array:
    wide = images.astype(jnp.float32)
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    window = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = _to_level((window + 4 * wide[:, :, 1:-1, 1:-1]) / 13 + 0.5)
    return images.at[:, :, 1:-1, 1:-1].set(inner)


def smooth_by_products(images: Array) -> Array:
    """Window sums by products with matrices that are 1 on three diagonals; all sums are whole numbers below 2^24."""
    height, width = images.shape[2:]

    def band(size: int) -> np.ndarray:
        return np.tri(size, k=1) - np.tri(size, k=-2)

    # Levels are exact in any precision, sums of three in the highest only.
    rows = jnp.einsum("bciw,ih->bchw", images.astype(jnp.float32), jnp.asarray(band(height), jnp.float32))
    window = jnp.einsum("bchj,jw->bchw", rows, jnp.asarray(band(width), jnp.float32), precision="highest")
    inner = np.zeros((height, width), bool)
    inner[1:-1, 1:-1] = True
    return jnp.where(inner[None, None], _to_level((window + 4 * images.astype(jnp.float32)) / 13 + 0.5), images)


def solarize(images: Array, threshold: Array) -> Array:
    """ImageOps.solarize: levels from the threshold on are inverted. At 0 this is ImageOps.invert."""
    return jnp.where(images.astype(jnp.float32) < threshold, images, 255 - images)


def posterize(images: Array, bits: Array) -> Array:
    """ImageOps.posterize: keeps the highest bits of each level. bits: whole numbers 0..8."""
    mask = 256 - jnp.exp2(8 - bits)
    return images & mask.astype(jnp.uint8)


def autocontrast(levels: Array, counts: Array) -> Array:
    """ImageOps.autocontrast: each channel stretched to 0..255. counts: the image's histogram.

    levels: uint8 [B, 3, ...], those of the image or any others.
    """
    every = jnp.arange(LEVELS, dtype=jnp.float32)[None, None, :]
    low = jnp.min(jnp.where(counts > 0, every, LEVELS), axis=-1)[:, :, None, None]
    high = jnp.max(jnp.where(counts > 0, every, -1), axis=-1)[:, :, None, None]
    stretched = 255 * (levels.astype(jnp.float32) - low) / jnp.maximum(high - low, 1)
    return jnp.where(high > low, _to_level(stretched), levels)


def equalized(counts: Array) -> Array:
    """What ImageOps.equalize makes of each level: by rank, in steps of (pixels not of its top level) // 255.

    counts: the image's histogram. -> uint8 [B, 3, 256].
    """
    darker = exclusive_sums(counts)
    step = jnp.floor(jnp.max(jnp.where(counts > 0, darker, 0), axis=-1, keepdims=True) / 255)
    ranked = (jnp.floor(step / 2) + darker) / jnp.maximum(step, 1)
    return jnp.where(step > 0, _to_level(ranked), jnp.arange(LEVELS, dtype=jnp.uint8)[None, None, :])


def look_up(tables: Array, images: Array) -> Array:
    """Each channel of each image through its own table. tables: uint8 [B, 3, 256]; images: uint8 [B, 3, H, W]."""
    # Both are exact. A TPU would fetch the pixels one after another, and its compiler has no estimate of how long that takes.
    return jax.lax.platform_dependent(tables, images, tpu=look_up_by_products, default=look_up_by_gathers)


def look_up_by_gathers(tables: Array, images: Array) -> Array:
    pixels = images.reshape(*images.shape[:2], -1).astype(jnp.int32)
    return jnp.take_along_axis(tables, pixels, axis=-1, mode="promise_in_bounds").reshape(images.shape)


def look_up_by_products(tables: Array, images: Array) -> Array:
    """By the high four bits the table's row of 16, by the low four the level in it; bfloat16 holds all of 0..255."""
    pixels = images.reshape(*images.shape[:2], -1)
    high = jax.nn.one_hot(pixels >> 4, 16, dtype=jnp.bfloat16)
    low = jax.nn.one_hot(pixels & 15, 16, dtype=jnp.bfloat16)
    rows = jnp.einsum("bcph,bchl->bcpl", high, tables.reshape(*tables.shape[:2], 16, 16).astype(jnp.bfloat16))
    return (rows * low).sum(-1).astype(jnp.uint8).reshape(images.shape)


def shift_hue(images: Array, shift: Array) -> Array:
    """Moves the hue by `shift` 256ths of the circle, through Pillow's 8-bit HSV. shift: whole numbers."""
    hue, saturation, value = _to_hsv(images)
    return _from_hsv(jnp.mod(hue + shift, LEVELS), saturation, value)


def histogram(images: Array) -> Array:
    """How often each level occurs in each channel. -> float32 (whole numbers) [B, 3, 256]."""
    pixels = images.reshape(*images.shape[:2], -1)
    # Both are exact. CPUs are fast at scattered additions, accelerators at matrix products.
    return jax.lax.platform_dependent(pixels, cpu=histogram_by_scatter, default=histogram_by_matmul)


def histogram_by_scatter(pixels: Array) -> Array:
    """uint8 [B, 3, pixels] -> [B, 3, 256]."""
    rows = pixels.reshape(-1, pixels.shape[-1])
    counts = jax.vmap(lambda row: jnp.zeros(LEVELS, jnp.int32).at[row].add(1))(rows)
    return counts.reshape(*pixels.shape[:2], LEVELS).astype(jnp.float32)


def histogram_by_matmul(pixels: Array) -> Array:
    """uint8 [B, 3, pixels] -> [B, 3, 256], by counting pairs (high four bits, low four bits)."""
    high = jax.nn.one_hot(pixels >> 4, 16, dtype=jnp.bfloat16)
    low = jax.nn.one_hot(pixels & 15, 16, dtype=jnp.bfloat16)
    pairs = jnp.einsum("bcph,bcpl->bchl", high, low, preferred_element_type=jnp.float32)
    return pairs.reshape(*pixels.shape[:2], LEVELS)


def exclusive_sums(counts: Array) -> Array:
    """Cumulative sums without the element itself, of whole numbers. [B, 3, 256]."""
    # Both are exact. Blocks are less arithmetic; to a TPU that is nothing beside another order of the array.
    return jax.lax.platform_dependent(counts, cpu=sums_by_blocks, default=sums_by_product)


def sums_by_blocks(counts: Array) -> Array:
    blocks = counts.reshape(*counts.shape[:2], 16, 16)
    before = jnp.triu(jnp.ones((16, 16), jnp.float32), k=1)
    within = jnp.matmul(blocks, before, precision="highest")
    earlier = jnp.matmul(blocks.sum(-1), before, precision="highest")
    return (within + earlier[..., None]).reshape(counts.shape)


def sums_by_product(counts: Array) -> Array:
    return jnp.matmul(counts, jnp.triu(jnp.ones((LEVELS, LEVELS), jnp.float32), k=1), precision="highest")


def _to_hsv(images: Array) -> tuple[Array, Array, Array]:
    """Image.convert("HSV"). uint8 [B, 3, H, W] -> whole numbers 0..255 in float32, each [B, 1, H, W]."""
    red, green, blue = (images[:, c : c + 1].astype(jnp.float32) for c in range(3))
    top = jnp.maximum(red, jnp.maximum(green, blue))
    span = top - jnp.minimum(red, jnp.minimum(green, blue))
    sixth = jnp.where(green == top, 2 * span + blue - red, 4 * span + red - green)
    sixth = jnp.where(red == top, green - blue, sixth)
    gray = span == 0
    sixth = sixth / jnp.where(gray, 1, span)
    hue = jnp.floor(jnp.mod(sixth / 6 + 1, 1) * 255)
    saturation = jnp.floor(255 * span / jnp.maximum(top, 1))
    return jnp.where(gray, 0, hue), jnp.where(gray, 0, saturation), top


def _from_hsv(hue: Array, saturation: Array, value: Array) -> Array:
    """Image.convert("RGB") of the above. -> uint8 [B, 3, H, W]."""
    sixth = jnp.floor(hue * 6 / 255)
    part = hue * 6 / 255 - sixth
    ratio = saturation / 255
    low = jnp.floor(value * (1 - ratio) + 0.5)
    falling = jnp.floor(value * (1 - ratio * part) + 0.5)
    rising = jnp.floor(value * (1 - ratio * (1 - part)) + 0.5)

    def channel(*by_sixth: Array) -> Array:
        result = by_sixth[0]  # sixth 0, or 6 for hue 255, which is red again
        for index, choice in enumerate(by_sixth[1:], start=1):
            result = jnp.where(sixth == index, choice, result)
        return result

    red = channel(value, falling, low, low, rising, value)
    green = channel(rising, value, value, falling, low, low)
    blue = channel(low, low, rising, value, value, falling)
    return _to_level(jnp.concatenate([red, green, blue], axis=1))


def _to_level(values: Array) -> Array:
    return jnp.clip(values, 0, 255).astype(jnp.uint8)
