"""Training and test transforms: crops, flips, brightness, normalisation, their keys and their independence."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image, ImageEnhance

from rose_jax.data.augment import colour, geometry
from rose_jax.data.augment import recipes as augment
from rose_jax.errors import UserError


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 256, (64, 8, 8, 3)).astype(np.uint8)


@functools.cache
def transform_of(kind: str):
    return jax.jit(augment.train_transform(kind, normalise=augment.eval_transform("cifar100"), pad=2))


def windows(image: np.ndarray, pad: int) -> dict[bytes, tuple[int, int]]:
    """All crops of the zero-padded image, by their bytes."""
    height, width, _ = image.shape
    padded = np.zeros((height + 2 * pad, width + 2 * pad, 3), np.uint8)
    padded[pad : pad + height, pad : pad + width] = image
    offsets = [(y, x) for y in range(2 * pad + 1) for x in range(2 * pad + 1)]
    return {padded[y : y + height, x : x + width].tobytes(): (y, x) for y, x in offsets}


def test_shift_cuts_every_window_of_the_padded_image_and_nothing_else(images):
    shift = jax.jit(augment.shift, static_argnums=2)
    known, seen = [windows(image, 2) for image in images], set()
    for step in range(10):
        shifted = np.asarray(shift(jax.random.key(step), images, 2))
        seen |= {offsets[image.tobytes()] for offsets, image in zip(known, shifted, strict=True)}
    assert len(seen) == 25


def test_crops_by_products_are_crops_by_copies(images):
    """What accelerators compute is what CPUs copy, to the bit, for every corner."""
    corners = np.stack(np.meshgrid(range(7), range(7)), -1).reshape(-1, 2)[:, ::-1]
    some = np.resize(images, (len(corners), 8, 8, 3))
    expected = np.asarray(geometry.crop_by_copies(some, corners, 3))
    np.testing.assert_array_equal(geometry.crop_by_products(some, corners, 3), expected)
    assert (expected == 0).any()


def test_crop_flip_is_a_window_or_its_mirror_image(images):
    cropped = np.asarray(augment.crop_flip(jax.random.key(0), images, 4))
    known = [windows(image, 4) for image in images]
    straight = [image.tobytes() in crops for image, crops in zip(cropped, known, strict=True)]
    mirrored = [image[:, ::-1].tobytes() in crops for image, crops in zip(cropped, known, strict=True)]
    assert np.all(np.logical_xor(straight, mirrored))
    assert len(images) / 4 < sum(straight) < len(images) * 3 / 4


def test_flip_mirrors_half_of_the_images(images):
    many = np.tile(images, (30, 1, 1, 1))
    flipped = np.asarray(augment.flip(jax.random.key(0), many, 0))
    mirrored = np.all(flipped == many[:, :, ::-1], axis=(1, 2, 3))
    assert np.all(mirrored | np.all(flipped == many, axis=(1, 2, 3)))
    assert abs(mirrored.mean() - 0.5) < 5 * np.sqrt(0.25 / len(many))


def test_brightness_equals_pillow(images):
    key, amount = jax.random.key(1), 63 / 255
    factors = np.asarray(colour.random_factor(key, len(images), amount)).ravel()
    pictures = [ImageEnhance.Brightness(Image.fromarray(image)) for image in images]
    expected = [np.asarray(p.enhance(float(f))) for p, f in zip(pictures, factors, strict=True)]
    np.testing.assert_array_equal(colour.jitter_brightness(key, images, amount), expected)
    assert factors.min() >= 1 - amount
    assert factors.max() <= 1 + amount
    assert np.ptp(factors) > amount


def test_standard_is_crop_flip_then_brightness(images):
    """A jittered window keeps its zeros, and the ratio of all other values is one factor, but for the rounding."""
    flat = np.full_like(images, 200)
    result = np.asarray(augment.standard(jax.random.key(2), flat, 4)).reshape(len(images), -1)
    levels = [np.unique(image[image > 0]) for image in result]
    assert all(len(level) == 1 for level in levels)
    level = np.concatenate(levels)
    assert level.min() >= int(200 * (1 - 63 / 255))
    assert level.max() <= int(200 * (1 + 63 / 255))
    assert len(np.unique(level)) > 20


@pytest.mark.parametrize("name", augment.NORMALISATION)
def test_normalisation(name, images):
    mean, std = (np.array(part, np.float64) for part in augment.NORMALISATION[name])
    expected = (images.astype(np.float64) / 255 - mean) / std
    result = jax.jit(augment.eval_transform(name))(images)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_normalisation_constants():
    assert augment.NORMALISATION["cifar100"] == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    assert augment.NORMALISATION["imagenet"] == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    from sklearn.datasets import load_digits

    scans = load_digits().images / 16
    mean, std = augment.NORMALISATION["digits"]
    assert mean == pytest.approx((scans.mean(),) * 3, abs=1e-3)
    assert std == pytest.approx((scans.std(),) * 3, abs=1e-3)


@pytest.mark.parametrize("kind", augment.TRAIN)
def test_same_key_same_images_on_any_number_of_devices(kind, images):
    transform = transform_of(kind)
    alone = transform(jax.random.key(0), images)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    shards = jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))
    apart = np.abs(np.asarray(transform(jax.random.key(0), shards)) - np.asarray(alone))
    # Where pixels are interpolated, two programs may round one of them to neighbouring grey levels.
    assert apart.max() <= 1.01 / 255 / min(augment.NORMALISATION["cifar100"].std)
    assert np.mean(apart > 0) < 0.05
    assert alone.shape == images.shape
    assert alone.dtype == np.float32
    if kind != "none":
        assert not np.array_equal(transform(jax.random.key(1), images), alone)


@pytest.mark.parametrize("kind", [kind for kind in augment.TRAIN if kind != "none"])
def test_each_image_draws_its_own(kind, images):
    copies = np.tile(images[:1], (64, 1, 1, 1))
    results = np.asarray(transform_of(kind)(jax.random.key(0), copies))
    assert len(np.unique(results.reshape(64, -1), axis=0)) >= (2 if kind == "flip" else 16)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"Unknown augmentation 'autoaugmet'. Did you mean 'autoaugment'\?"):
        augment.train_transform("autoaugmet", normalise=augment.eval_transform("cifar100"), pad=4)
    with pytest.raises(UserError, match=r"Unknown normalisation 'cifar10'. Did you mean 'cifar100'\?"):
        augment.eval_transform("cifar10")
