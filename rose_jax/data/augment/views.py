"""What FCS adds to a batch, inside jit: rotations as classes (PASS), mixtures as classes (IL2A), a second view.

RoSE's warm start trains with the same (its supplement: "follow FCS"). TTT's random rotations and the pairs of views of
TTT++ are here as well.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rose_jax.data.augment import colour, geometry, resize

ROTATIONS = 4
VIEW_SCALE = (0.2, 1.0)
VIEW_JITTER = 0.4  # of brightness, contrast and saturation; of the hue, in turns
VIEW_GRAYSCALE = 0.2
SIMCLR_HUE, SIMCLR_JITTERED = 0.1, 0.8  # in turns; the share of views whose colours are jittered at all
MIX_RANGE = (0.4, 0.6)  # of a mixture's weights; IL2A's TinyImageNet has another one


class Mixtures(NamedTuple):
    """Images between two classes of the task."""

    images: Array  # float32 [times * B, H, W, C]
    pair: Array  # int32 [times * B], see `pair_index`; 0 where not valid
    valid: Array  # bool [times * B]


def turn(images: Array) -> Array:
    """[B, H, H, C] -> [4, B, H, H, C]: the batch at 0, 90, 180 and 270 degrees counter-clockwise."""
    return jnp.stack([jnp.rot90(images, k, axes=(1, 2)) for k in range(ROTATIONS)])


def rotations(images: Array, labels: Array) -> tuple[Array, Array]:
    """Each image at 0, 90, 180 and 270 degrees counter-clockwise, as classes 4y, 4y + 1, 4y + 2, 4y + 3.

    [B, H, H, C], [B] -> [4B, H, H, C], [4B], the four of an image next to each other. Class y upright is 4y.
    """
    turned = jnp.moveaxis(turn(images), 0, 1)
    classes = ROTATIONS * labels[:, None] + jnp.arange(ROTATIONS, dtype=labels.dtype)[None, :]
    return turned.reshape(-1, *images.shape[1:]), classes.reshape(-1)


def second_view(key: Array, images: Array) -> Array:
    """The contrastive view, from the image as it is stored: uint8 [B, H, H, 3] -> the same, not normalised.

    RandomResizedCrop(scale=(0.2, 1)), RandomGrayscale(0.2), ColorJitter(0.4, 0.4, 0.4, 0.4) always, flip.
    """
    batch, size = images.shape[:2]
    crop_key, gray_key, jitter_key, flip_key = jax.random.split(key, 4)
    box = geometry.random_box(crop_key, batch, size, size, VIEW_SCALE)
    planes = jnp.moveaxis(resize.resized_crop(images, box, size), -1, 1)
    gray = jax.random.bernoulli(gray_key, VIEW_GRAYSCALE, (batch, 1, 1, 1))
    planes = jnp.where(gray, colour.luminance(planes), planes)
    planes = colour_jitter(planes, *draw_jitter(jitter_key, batch, VIEW_JITTER))
    return geometry.random_flip(flip_key, jnp.moveaxis(planes, 1, -1))


def simclr_pair(key: Array, images: Array) -> Array:
    """Two views of each image for SimCLR: uint8 [B, H, H, 3] -> [2B, H, H, 3], rows 2i and 2i + 1 of image i.

    RandomResizedCrop(scale=(0.2, 1)), flip, ColorJitter(0.4, 0.4, 0.4, 0.1) with probability 0.8, RandomGrayscale(0.2),
    as TTT++ has them. An image's draws depend on its row alone, whatever the number of rows.
    """
    batch, size = 2 * images.shape[0], images.shape[1]
    crop_key, flip_key, jitter_key, used_key, gray_key = jax.random.split(key, 5)
    box = geometry.random_box(crop_key, batch, size, size, VIEW_SCALE)
    cropped = geometry.random_flip(flip_key, resize.resized_crop(jnp.repeat(images, 2, axis=0), box, size))
    planes = jnp.moveaxis(cropped, -1, 1)
    jittered = colour_jitter(planes, *draw_jitter(jitter_key, batch, VIEW_JITTER, SIMCLR_HUE))
    used = jax.random.bernoulli(used_key, SIMCLR_JITTERED, (batch, 1, 1, 1))
    planes = jnp.where(used, jittered, planes)
    gray = jax.random.bernoulli(gray_key, VIEW_GRAYSCALE, (batch, 1, 1, 1))
    return jnp.moveaxis(jnp.where(gray, colour.luminance(planes), planes), 1, -1)


def turn_each(key: Array, images: Array) -> tuple[Array, Array]:
    """Each image turned a random number of times: [B, H, H, C] -> the same, and the numbers 0..3, int32 [B]."""
    times = jax.random.randint(key, (images.shape[0],), 0, ROTATIONS)
    chosen = times[None, :, None, None, None]
    return jnp.take_along_axis(turn(images), chosen, axis=0)[0], times


def draw_jitter(key: Array, batch: int, amount: float, hue: float | None = None) -> tuple[Array, Array]:
    """Order [B, 4] and strength [B, 4] of brightness, contrast, saturation (factors) and hue (turns).

    hue: how far it may go; `amount` unless told.
    """
    most = amount if hue is None else hue
    order_key, factor_key, hue_key = jax.random.split(key, 3)
    order = jnp.argsort(jax.random.uniform(order_key, (batch, 4)), axis=1)
    factors = jax.random.uniform(factor_key, (batch, 3), minval=max(0.0, 1 - amount), maxval=1 + amount)
    turns = jax.random.uniform(hue_key, (batch, 1), minval=-most, maxval=most)
    return order, jnp.concatenate([factors, turns], axis=1)


def colour_jitter(images: Array, order: Array, strength: Array) -> Array:
    """torchvision's ColorJitter on Pillow images: four changes, each image in its own order.

    images: uint8 [B, 3, H, W]; order, strength: [B, 4] as from `draw_jitter`.
    """

    def change(planes: Array, slot: Array) -> tuple[Array, None]:
        which = order[:, slot]
        amount = jnp.take_along_axis(strength, which[:, None], axis=1)[..., None, None]
        is_contrast, is_saturation, is_hue = ((which == k)[:, None, None, None] for k in (1, 2, 3))
        degenerate = jnp.where(is_contrast, colour.mean_luminance(planes), jnp.uint8(0))
        degenerate = jnp.where(is_saturation, colour.luminance(planes), degenerate)
        blended = colour.blend(degenerate, planes, amount)
        # The branch keeps XLA's CPU compiler from fusing the HSV conversion with the rest, which would be slow.
        shift = jnp.trunc(255 * amount)
        hued = jax.lax.cond(jnp.any(is_hue), colour.shift_hue, lambda same, _: same, planes, shift)
        return jnp.where(is_hue, hued, blended), None

    return jax.lax.scan(change, images, jnp.arange(4))[0]


def mix_classes(
    key: Array,
    images: Array,
    labels: Array,
    offset: Array,
    mask: Array | None = None,
    *,
    times: int = 4,
    within: tuple[float, float] = MIX_RANGE,
) -> Mixtures:
    """IL2A's class mixing: the batch with `times` permutations of itself, one new class per pair of classes.

    lam * a + (1 - lam) * b with lam ~ Beta(20, 20), or 0.5 where that is not `within` (both ends are). A mixture of a
    class with itself is not valid. Images with mask False are padding: they are permuted among themselves, and their
    number changes nothing for the others (an image's draws depend on its row, since it is their first axis).
    images: float [B, H, W, C]; labels: int [B], from `offset` on; offset: int, the task's first class; mask: [B].
    """
    batch = images.shape[0]
    order_key, lam_key = jax.random.split(key)
    mask = jnp.ones(batch, bool) if mask is None else mask
    draws = jnp.where(mask[:, None], jax.random.uniform(order_key, (batch, times)), 2.0)
    # [B] rank among images or among padding
    place = jnp.where(mask, jnp.cumsum(mask) - 1, mask.sum() + jnp.cumsum(~mask) - 1)
    partner = jnp.argsort(draws, axis=0)[place].T.reshape(-1)  # permutations
    itself = jnp.tile(jnp.arange(batch), times)

    # The middle one of 39 uniform numbers is Beta(20, 20), and compiles sooner than jax.random.beta.
    lam = jnp.sort(jax.random.uniform(lam_key, (batch, times, 39)), axis=2)[:, :, 19]
    lam = jnp.where((lam < within[0]) | (lam > within[1]), 0.5, lam).T.reshape(-1, 1, 1, 1)
    mixed = lam * images[itself] + (1 - lam) * images[partner]

    first, second = labels[itself] - offset, labels[partner] - offset
    valid = (first != second) & mask[itself]
    return Mixtures(mixed, jnp.where(valid, pair_index(first, second), 0).astype(jnp.int32), valid)


def pair_index(first: Array, second: Array) -> Array:
    """The number of the unordered pair i < j of a task's classes 0, 1, ...: j (j - 1) / 2 + i.

    Pairs of n classes have the numbers 0 .. n (n - 1) / 2 - 1, whatever n.
    """
    low, high = jnp.minimum(first, second), jnp.maximum(first, second)
    return high * (high - 1) // 2 + low


def n_pairs(n_classes: int) -> int:
    """How many mixed classes a task of so many classes has."""
    return n_classes * (n_classes - 1) // 2
