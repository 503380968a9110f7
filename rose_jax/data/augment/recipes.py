"""Augmentation and normalisation of whole batches, inside jit, on the device.

A training transform takes one PRNG key and uint8 images [B, H, W, 3]; every image of the batch draws its own
crop, flip and colours. Up to the normalisation all values are whole grey levels, as they are in Pillow.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rose_jax import errors
from rose_jax.data.augment import autoaugment, colour, geometry, resize

# torchvision's ColorJitter(brightness=63/255), the CIFAR recipe of PyCIL and code derived from it.
BRIGHTNESS_JITTER = 63 / 255


class Normalisation(NamedTuple):
    """Mean and standard deviation of each channel, for pixels scaled to 0..1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


NORMALISATION: dict[str, Normalisation] = {
    "cifar100": Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "digits": Normalisation((0.3053,) * 3, (0.3761,) * 3),  # of scikit-learn's 1797 scans, 16 levels of gray
}


def train_transform(
    kind: str, *, normalise: Callable[[Array], Array], pad: int
) -> Callable[[Array, Array], Array]:
    """(key, uint8 [B, H, W, 3]) -> float32 [B, H, W, 3], augmented as `TRAIN[kind]` says and normalised."""
    if kind not in TRAIN:
        raise errors.unknown("augmentation", kind, TRAIN)
    augment = TRAIN[kind]
    return lambda key, images: normalise(augment(key, images, pad))


def eval_transform(normalisation: str | Normalisation) -> Callable[[Array], Array]:
    """uint8 [B, H, W, 3] -> float32 [B, H, W, 3], normalised and nothing else; by name, or with given constants."""
    if isinstance(normalisation, str):
        if normalisation not in NORMALISATION:
            raise errors.unknown("normalisation", normalisation, NORMALISATION)
        normalisation = NORMALISATION[normalisation]
    return functools.partial(normalise, constants=normalisation)


def normalise(images: Array, constants: Normalisation) -> Array:
    """(images / 255 - mean) / std, in float32. images: [B, H, W, 3] of grey levels 0..255."""
    mean, std = (jnp.asarray(c, jnp.float32)[None, None, None, :] for c in constants)
    return (images.astype(jnp.float32) / 255 - mean) / std


# The recipes. Each: (key, uint8 [B, H, W, 3], pad) -> uint8 [B, H, W, 3].


def standard(key: Array, images: Array, pad: int) -> Array:
    """CIFAR: zero-padded random crop, horizontal flip, brightness."""
    geometry_key, brightness_key = jax.random.split(key)
    return colour.jitter_brightness(brightness_key, crop_flip(geometry_key, images, pad), BRIGHTNESS_JITTER)


def crop_flip(key: Array, images: Array, pad: int) -> Array:
    """TinyImageNet in LDC and ADC: zero-padded random crop, horizontal flip."""
    crop_key, flip_key = jax.random.split(key)
    return geometry.random_flip(flip_key, geometry.random_crop(crop_key, images, pad))


def flip(key: Array, images: Array, pad: int) -> Array:
    """Horizontal flip alone: ImageNet-100, which is cropped while decoding; FCS's TinyImageNet."""
    del pad
    return geometry.random_flip(key, images)


def shift(key: Array, images: Array, pad: int) -> Array:
    """Digits: zero-padded random crop, and no flip because a mirrored digit is no digit."""
    return geometry.random_crop(key, images, pad)


def standard_autoaugment(key: Array, images: Array, pad: int) -> Array:
    """CIFAR-100 from a cold start in LDC and ADC: `standard`, then AutoAugment's CIFAR-10 policy."""
    standard_key, policy_key = jax.random.split(key)
    return autoaugment.autoaugment(policy_key, standard(standard_key, images, pad))


def padded_resized_crop(key: Array, images: Array, pad: int) -> Array:
    """CIFAR-100 in EFC: zero padding, torchvision's RandomResizedCrop back to the old size, horizontal flip."""
    crop_key, flip_key = jax.random.split(key)
    size = images.shape[1]
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    box = geometry.random_box(crop_key, len(images), size + 2 * pad, size + 2 * pad, (0.08, 1.0))
    return geometry.random_flip(flip_key, resize.resized_crop(padded, box, size))


def none(key: Array, images: Array, pad: int) -> Array:
    """The images as they are."""
    del key, pad
    return images


TRAIN: dict[str, Callable[[Array, Array, int], Array]] = {
    "standard": standard,
    "crop_flip": crop_flip,
    "flip": flip,
    "shift": shift,
    "autoaugment": standard_autoaugment,
    "padded_resized_crop": padded_resized_crop,
    "none": none,
}
