"""AutoAugment against Pillow: every operation the policy can draw, then every sub-policy with every outcome."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from rose_jax.data.augment import autoaugment, colour, warps

# The 25 sub-policies as (probability, operation, level) twice, typed from the published table for CIFAR-10.
PUBLISHED = """
.1 invert 7        .2 contrast 6     | .7 rotate 2        .3 translate_x 9 | .8 sharpness 1 .9 sharpness 3
.5 shear_y 8       .7 translate_y 9  | .5 autocontrast 8  .9 equalize 2    | .2 shear_y 7   .3 posterize 7
.4 color 3         .6 brightness 7   | .3 sharpness 9     .7 brightness 9  | .6 equalize 5  .5 equalize 1
.6 contrast 7      .6 sharpness 5    | .7 color 7         .5 translate_x 8 | .3 equalize 7  .4 autocontrast 8
.4 translate_y 3   .2 sharpness 6    | .9 brightness 6    .2 color 8       | .5 solarize 2  .0 invert 3
.2 equalize 0      .6 autocontrast 0 | .2 equalize 8      .6 equalize 4    | .9 color 9     .6 equalize 6
.8 autocontrast 4  .2 solarize 8     | .1 brightness 3    .7 color 0       | .4 solarize 5  .9 autocontrast 3
.9 translate_y 9   .7 translate_y 9  | .9 autocontrast 2  .8 solarize 3    | .8 equalize 8  .1 invert 3
.7 translate_y 9   .9 autocontrast 1
"""

GREY = (128, 128, 128)
SKIPPED, MINUS, PLUS = 0, 1, 2
SIGN = {MINUS: -1, PLUS: 1}

# Share of values that may be one grey level off; the operations not named here are exact. Fused multiply-adds
# round some products that Pillow truncates just below a whole number. Autocontrast's quotients are often whole,
# and there Pillow's doubles fall on either side.
ONE_LEVEL_OFF = {"contrast": 0.01, "color": 0.01, "sharpness": 0.01, "shear_y": 0.01, "autocontrast": 0.06}


def pillow(image: np.ndarray, name: str, level: int, sign: int) -> np.ndarray:
    """The operation as the reference code calls Pillow; its magnitudes are m * level / 9."""
    picture = Image.fromarray(image)
    size, part = picture.size, level / 9
    affine = functools.partial(picture.transform, size, Image.Transform.AFFINE, fillcolor=GREY)
    if name == "shear_y":
        picture = affine((1, 0, 0, sign * 0.3 * part, 1, 0), resample=Image.Resampling.BICUBIC)
    elif name == "translate_x":
        picture = affine((1, 0, sign * 150 / 331 * part * size[0], 0, 1, 0))
    elif name == "translate_y":
        picture = affine((1, 0, 0, 0, 1, sign * 150 / 331 * part * size[1]))
    elif name == "rotate":
        turned = picture.convert("RGBA").rotate(sign * 30 * part)
        picture = Image.composite(turned, Image.new("RGBA", size, (128,) * 4), turned).convert("RGB")
    elif name == "posterize":
        picture = ImageOps.posterize(picture, round(8 - 4 * part))
    elif name == "solarize":
        picture = ImageOps.solarize(picture, 256 * (1 - part))
    elif name in ("autocontrast", "equalize", "invert"):
        picture = getattr(ImageOps, name)(picture)
    else:
        picture = getattr(ImageEnhance, name.capitalize())(picture).enhance(1 + sign * 0.9 * part)
    return np.asarray(picture)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Noise, blurred noise, low contrast, few levels, one level, and a black border: uint8 [12, 32, 32, 3]."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (12, 32, 32, 3)).astype(np.uint8)
    for i in (3, 4, 5):
        tiny = Image.fromarray(noise[i, :5, :5])
        noise[i] = np.asarray(tiny.resize((32, 32), Image.Resampling.BILINEAR))
    noise[6] = 100 + noise[6] // 16
    noise[7] = noise[7] // 128 * 200
    noise[8] = 77
    noise[9, :, :, 1] = 255
    noise[10, :4] = 0
    noise[11] = noise[3] // 2
    return noise


@pytest.fixture(scope="module")
def apply():
    return jax.jit(autoaugment.apply_policy)


def test_policy_is_the_published_one():
    entries = PUBLISHED.replace("|", " ").split()
    numbers = zip(entries[::3], entries[1::3], entries[2::3], strict=True)
    published = [(float(p), name, int(level)) for p, name, level in numbers]
    assert [tuple(op) for pair in autoaugment.POLICY for op in pair] == published
    assert len(autoaugment.POLICY) == 25


@pytest.mark.parametrize("name", sorted({op.name for pair in autoaugment.POLICY for op in pair}))
def test_operation_equals_pillow(name, images, apply):
    """Every level and sign of it that the policy can draw, alone."""
    different, total = 0, 0
    for sub_policy, slot, outcome in itertools.product(range(25), range(2), (MINUS, PLUS)):
        operation = autoaugment.POLICY[sub_policy][slot]
        if operation.name != name:
            continue
        outcomes = np.zeros((len(images), 2), np.int32)
        outcomes[:, slot] = outcome
        ours = np.asarray(apply(images, np.full(len(images), sub_policy), outcomes))
        theirs = np.stack([pillow(image, name, operation.level, SIGN[outcome]) for image in images])
        difference = np.abs(ours.astype(int) - theirs)
        assert difference.max() <= 1
        different, total = different + (difference > 0).sum(), total + difference.size
    assert different <= ONE_LEVEL_OFF.get(name, 0) * total


def test_every_outcome_of_every_sub_policy(images, apply):
    """The second operation acts on the result of the first. Equalizing may widen a level of difference."""
    drawn = list(itertools.product(range(25), (SKIPPED, MINUS, PLUS), (SKIPPED, MINUS, PLUS)))
    batch = images[np.arange(len(drawn)) % len(images)]
    ours = np.asarray(apply(batch, np.array([d[0] for d in drawn]), np.array([d[1:] for d in drawn])))
    off = []
    for image, result, (sub_policy, *outcomes) in zip(batch, ours, drawn, strict=True):
        for operation, outcome in zip(autoaugment.POLICY[sub_policy], outcomes, strict=True):
            if outcome != SKIPPED:
                image = pillow(image, operation.name, operation.level, SIGN[outcome])
        off.append(np.mean(np.abs(result.astype(int) - image) > 1))
    assert np.median(off) == 0
    assert np.max(off) < 0.02
    assert np.mean(off) < 0.0005


def test_draws_have_the_policys_frequencies():
    batch = 40_000
    sub_policy, outcome = jax.jit(autoaugment.draw, static_argnums=1)(jax.random.key(3), batch)
    counts = np.bincount(np.asarray(sub_policy), minlength=25)
    assert abs(counts / batch - 1 / 25).max() < 5 * np.sqrt(0.04 * 0.96 / batch)
    for index, pair in enumerate(autoaugment.POLICY):
        drawn = np.asarray(outcome)[np.asarray(sub_policy) == index]
        for slot, operation in enumerate(pair):
            noise = 5 * np.sqrt(operation.probability * (1 - operation.probability) / len(drawn))
            assert abs(np.mean(drawn[:, slot] != SKIPPED) - operation.probability) <= noise
    happened = np.asarray(outcome)[np.asarray(outcome) != SKIPPED]
    assert abs(np.mean(happened == PLUS) - 0.5) < 5 * np.sqrt(0.25 / len(happened))


def test_histogram_is_the_same_on_every_platform(images):
    planes = np.moveaxis(images, -1, 1)
    expected = [[np.bincount(plane.ravel(), minlength=256) for plane in image] for image in planes]
    pixels = planes.reshape(len(images), 3, -1)
    np.testing.assert_array_equal(colour.histogram(planes), expected)
    np.testing.assert_array_equal(colour.histogram_by_scatter(pixels), expected)
    np.testing.assert_array_equal(colour.histogram_by_matmul(pixels), expected)


def test_smoothing_is_the_same_by_products():
    """What accelerators compute is what CPUs compute, to the bit."""
    planes = np.random.default_rng(3).integers(0, 256, (4, 3, 9, 14)).astype(np.uint8)
    planes[0] = 255
    expected = colour.smooth_by_slices(jnp.asarray(planes))
    np.testing.assert_array_equal(colour.smooth_by_products(planes), expected)


def test_tables_are_looked_up_alike_by_products():
    rng = np.random.default_rng(4)
    tables = rng.integers(0, 256, (4, 3, 256)).astype(np.uint8)
    planes = rng.integers(0, 256, (4, 3, 9, 14)).astype(np.uint8)
    expected = [
        [table[plane] for table, plane in zip(*both, strict=True)] for both in zip(tables, planes, strict=True)
    ]
    for look_up in (colour.look_up, colour.look_up_by_products, colour.look_up_by_gathers):
        np.testing.assert_array_equal(look_up(jnp.asarray(tables), jnp.asarray(planes)), expected)


@pytest.mark.parametrize("most", [1, 4, 1024])
def test_sums_of_a_histogram_are_alike_on_every_platform(most):
    counts = np.random.default_rng(5).integers(0, most, (4, 3, 256)).astype(np.float32)
    expected = np.cumsum(counts, axis=-1) - counts
    for sums in (colour.exclusive_sums, colour.sums_by_blocks, colour.sums_by_product):
        np.testing.assert_array_equal(sums(jnp.asarray(counts)), expected)


@pytest.mark.parametrize("slot", [0, 1])
def test_warps_are_alike_by_products(slot):
    """Every warp that the policy has, on an oblong image too; those of the first slot read between rows."""
    for height, width in ((32, 32), (9, 14)):
        maps = warps.source_maps(autoaugment._operation_table(slot)[1], height, width)
        choice = jnp.arange(len(maps.row))
        shape = (len(maps.row), 3, height, width)
        planes = jnp.asarray(np.random.default_rng(6).integers(0, 256, shape), jnp.uint8)
        expected = warps.warp_by_gathers(planes, choice, maps)
        np.testing.assert_array_equal(warps.warp_by_products(planes, choice, maps), expected)
        np.testing.assert_array_equal(warps.warp(planes, maps, choice), expected)
        assert not np.array_equal(expected[1:], planes[1:])


def test_other_sizes_and_oblong_images(apply):
    """Nothing is tied to 32 pixels: fills and centres follow height and width."""
    image = np.random.default_rng(1).integers(0, 256, (24, 40, 3)).astype(np.uint8)
    for sub_policy, name in ((1, "rotate"), (10, "translate_x"), (12, "translate_y")):
        slot = [op.name for op in autoaugment.POLICY[sub_policy]].index(name)
        outcomes = np.zeros((1, 2), np.int32)
        outcomes[:, slot] = PLUS
        level = autoaugment.POLICY[sub_policy][slot].level
        np.testing.assert_array_equal(
            apply(image[None], np.array([sub_policy]), outcomes)[0], pillow(image, name, level, 1)
        )
