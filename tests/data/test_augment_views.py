"""FCS's rotations, second view and mixed classes against NumPy, Pillow and SciPy."""

import colorsys
import itertools

import jax
import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy import stats

from rose_jax.data.augment import colour, geometry, resize, views


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (48, 32, 32, 3)).astype(np.uint8)
    for i in range(0, 48, 2):
        tiny = Image.fromarray(noise[i, :6, :6])
        noise[i] = np.asarray(tiny.resize((32, 32), Image.Resampling.BICUBIC))
    return noise


def test_rotations_are_numpys_image_by_image(images):
    labels = np.arange(48, dtype=np.int32)[::-1]
    turned, classes = jax.jit(views.rotations)(images, labels)
    expected = [np.rot90(image, k) for image in images for k in range(4)]
    np.testing.assert_array_equal(turned, expected)
    np.testing.assert_array_equal(classes, [4 * y + k for y in labels for k in range(4)])
    np.testing.assert_array_equal(turned[::4], images)


# --- second view


@pytest.mark.parametrize("size", [8, 16, 32])
def test_a_resized_box_equals_pillows(images, size):
    """To the bit: where the size is a power of two, float32 and Pillow's fixed point hold the weights exactly."""
    images = images[:, :size, :size]
    box = geometry.random_box(jax.random.key(size), len(images), size, size, (0.2, 1.0))
    ours = jax.jit(resize.resized_crop, static_argnums=2)(images, box, size)
    theirs = []
    for image, top, left, height, width in zip(images, *map(np.asarray, box), strict=True):
        cut = Image.fromarray(image).crop((left, top, left + width, top + height))
        theirs.append(np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR)))
    np.testing.assert_array_equal(ours, np.stack(theirs))


def torchvision_box(rng, height, width, scale):
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w
    return 0, 0, height, width


def test_random_boxes_are_distributed_as_torchvisions():
    rng = np.random.default_rng(0)
    theirs = np.array([torchvision_box(rng, 32, 32, (0.2, 1.0)) for _ in range(4000)])
    ours = np.stack(geometry.random_box(jax.random.key(5), 4000, 32, 32, (0.2, 1.0)), axis=1)
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert stats.ks_2samp(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3
    assert np.all(ours[:, :2] >= 0)
    assert np.all(ours[:, :2] + ours[:, 2:] <= 32)


def test_without_a_fitting_box_the_central_one_is_taken():
    box = geometry.random_box(jax.random.key(0), 5, 10, 40, (1.0, 1.0))
    np.testing.assert_array_equal(np.stack(box, axis=1), np.tile([0, 13, 10, 13], (5, 1)))


def pillow_hue(image: np.ndarray, turns: float) -> np.ndarray:
    hue, saturation, value = Image.fromarray(image).convert("HSV").split()
    moved = np.asarray(hue).astype(int) + int(turns * 255)
    channels = (Image.fromarray((moved % 256).astype(np.uint8)), saturation, value)
    return np.asarray(Image.merge("HSV", channels).convert("RGB"))


def test_hue_equals_pillow(images):
    """Equal in nearly all values; where float32 rounds across a step of 8-bit hue, six levels at most."""
    turns = np.linspace(-0.4, 0.4, len(images)).astype(np.float32)
    shift = np.trunc(255 * turns)[:, None, None, None]
    ours = np.moveaxis(np.asarray(colour.shift_hue(np.moveaxis(images, -1, 1), shift)), 1, -1)
    theirs = np.stack([pillow_hue(image, float(t)) for image, t in zip(images, turns, strict=True)])
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 6
    assert np.mean(difference > 0) < 0.01
    red = np.full((1, 3, 4, 4), 0, np.uint8)
    red[:, 0] = 200
    third = np.asarray(colour.shift_hue(red, np.full((1, 1, 1, 1), 85.0)))[0, :, 0, 0]
    np.testing.assert_allclose(third / 200, colorsys.hsv_to_rgb(1 / 3, 1, 1), atol=0.01)


def test_jitter_equals_pillow_in_every_order(images):
    """All 24 orders. A level of difference before the hue is changed can become a few after it."""
    orders = np.array(list(itertools.permutations(range(4))) * 2, np.int32)
    _, strength = views.draw_jitter(jax.random.key(2), len(images), 0.4)
    ours = jax.jit(views.colour_jitter)(np.moveaxis(images, -1, 1), orders, strength)
    theirs = []
    for image, order, amounts in zip(images, orders, np.asarray(strength), strict=True):
        for which in order:
            if which == 3:
                image = pillow_hue(image, float(amounts[3]))
            else:
                enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which]
                image = np.asarray(enhance(Image.fromarray(image)).enhance(float(amounts[which])))
        theirs.append(image)
    difference = np.abs(np.moveaxis(np.asarray(ours), 1, -1).astype(int) - np.stack(theirs))
    assert np.mean(difference > 0) < 0.02
    assert np.mean(difference > 8) < 0.0005


def test_jitter_draws():
    order, strength = (np.asarray(part) for part in views.draw_jitter(jax.random.key(0), 4000, 0.4))
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(4), (4000, 1)))
    _, counts = np.unique(order, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
    for column, low in enumerate((0.6, 0.6, 0.6, -0.4)):
        assert stats.kstest(strength[:, column], stats.uniform(low, 0.8).cdf).pvalue > 1e-3


def test_second_view_is_gray_one_time_in_five(images):
    view = jax.jit(views.second_view)
    batch = np.tile(images[:1], (600, 1, 1, 1))
    seen = np.asarray(view(jax.random.key(0), batch))
    assert seen.shape == batch.shape
    assert seen.dtype == np.uint8
    gray = np.all(seen == seen[..., :1], axis=(1, 2, 3))
    assert abs(gray.mean() - 0.2) < 5 * np.sqrt(0.16 / 600)
    assert len(np.unique(seen.reshape(600, -1), axis=0)) == 600
    np.testing.assert_array_equal(seen, view(jax.random.key(0), batch))


# --- mixed classes


def test_pair_index_numbers_the_pairs_of_any_number_of_classes():
    for n_classes in (1, 2, 3, 10, 50):
        numbers = [int(views.pair_index(i, j)) for j in range(n_classes) for i in range(j)]
        assert sorted(numbers) == list(range(views.n_pairs(n_classes)))
    i, j = np.array([3, 7]), np.array([7, 3])
    np.testing.assert_array_equal(views.pair_index(i, j), [24, 24])


def test_mixtures_are_what_they_are_labelled():
    """Image b is a one at place b, so a mixture shows its two parents and their weights."""
    batch, offset = 60, 40
    rng = np.random.default_rng(0)
    images = np.eye(batch, dtype=np.float32).reshape(batch, 6, 10, 1)
    labels = rng.integers(offset, offset + 5, batch).astype(np.int32)
    mask = np.arange(batch) < 50
    mixtures = jax.jit(views.mix_classes)(jax.random.key(0), images, labels, offset, mask)
    weights = np.asarray(mixtures.images).reshape(4, batch, batch)

    for time in range(4):
        own = np.diagonal(weights[time])
        partner = np.where(own > 0.99, np.arange(batch), np.argmax(weights[time] - np.diag(own), axis=1))
        np.testing.assert_array_equal(np.sort(partner), np.arange(batch))
        np.testing.assert_allclose(weights[time].sum(axis=1), 1, atol=1e-6)
        different = labels != labels[partner]
        valid = np.asarray(mixtures.valid).reshape(4, batch)[time]
        np.testing.assert_array_equal(valid, different & mask & mask[partner])
        pairs = np.sort(np.stack([labels, labels[partner]], axis=1) - offset, axis=1)[valid]
        expected = pairs[:, 1] * (pairs[:, 1] - 1) // 2 + pairs[:, 0]
        np.testing.assert_array_equal(np.asarray(mixtures.pair).reshape(4, batch)[time][valid], expected)


def test_padding_changes_no_mixture():
    """A batch of 21 on one device, and padded to 24 for eight; the padding may lie anywhere."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(24, 2, 2, 1)).astype(np.float32), rng.integers(0, 3, 24).astype(np.int32)
    alone = views.mix_classes(jax.random.key(0), images[:21], labels[:21], 0)
    padded = views.mix_classes(jax.random.key(0), images, labels, 0, np.arange(24) < 21)
    for a, b in zip(alone, padded, strict=True):
        np.testing.assert_array_equal(a.reshape(4, 21, -1), b.reshape(4, 24, -1)[:, :21])
    assert not padded.valid.reshape(4, 24)[:, 21:].any()
    scattered = rng.permutation(24) < 21
    mixed = views.mix_classes(jax.random.key(0), images, np.arange(24), 0, scattered)
    assert mixed.valid.reshape(4, 24)[:, ~scattered].sum() == 0
    assert mixed.valid.reshape(4, 24)[:, scattered].mean() > 0.8, "padding is nobody's partner"


def test_weights_are_beta_with_the_tails_folded_to_a_half():
    batch = 1000
    labels = np.arange(batch, dtype=np.int32)
    images = np.zeros((batch, 1, 1, 2), np.float32)
    images[:, 0, 0, 0] = labels
    images[:, 0, 0, 1] = np.square(labels / batch)
    mixtures = views.mix_classes(jax.random.key(1), images, labels, 0)
    # The pair is known from its number, the weight then from where the mixture lies between the two.
    pair = np.asarray(mixtures.pair, np.int64)
    high = ((1 + np.sqrt(1 + 8 * pair.astype(float))) // 2).astype(int)
    low = pair - high * (high - 1) // 2
    far = np.asarray(mixtures.valid) & (high - low > 50)
    lam = ((np.asarray(mixtures.images)[:, 0, 0, 0] - low) / np.maximum(high - low, 1))[far]
    assert lam.min() >= 0.4 - 1e-4
    assert lam.max() <= 0.6 + 1e-4
    beta = stats.beta(20, 20)
    half = np.abs(lam - 0.5) < 1e-4
    outside = 2 * beta.cdf(0.4)
    assert abs(half.mean() - outside) < 5 * np.sqrt(outside * (1 - outside) / len(lam))
    inside = stats.kstest(lam[~half], lambda x: (beta.cdf(x) - beta.cdf(0.4)) / (1 - outside))
    assert inside.pvalue > 1e-3


# --- TTT and TTT++


def test_each_image_is_turned_as_it_is_labelled(images):
    turned, times = jax.jit(views.turn_each)(jax.random.key(0), images)
    np.testing.assert_array_equal(turned, [np.rot90(image, k) for image, k in zip(images, times, strict=True)])
    assert set(np.asarray(times).tolist()) == {0, 1, 2, 3}
    short, _ = views.turn_each(jax.random.key(0), images[:20])
    np.testing.assert_array_equal(short, turned[:20])


def test_pairs_of_views_equal_pillows(images):
    """Crop, flip, jitter and gray by Pillow, with the draws that the key stands for."""
    images, key = images[:12], jax.random.key(4)
    pairs = np.asarray(jax.jit(views.simclr_pair)(key, images))
    crop_key, flip_key, jitter_key, used_key, gray_key = jax.random.split(key, 5)
    boxes = np.stack(geometry.random_box(crop_key, 24, 32, 32, (0.2, 1.0)), axis=1)
    order, strength = map(np.asarray, views.draw_jitter(jitter_key, 24, 0.4, 0.1))
    flip, used, gray = (
        np.asarray(jax.random.bernoulli(k, p, (24,)))
        for k, p in ((flip_key, 0.5), (used_key, 0.8), (gray_key, 0.2))
    )
    assert abs(strength[:, 3]).max() < 0.1
    differences = []
    for row in range(24):
        top, left, height, width = map(int, boxes[row])
        cut = Image.fromarray(images[row // 2]).crop((left, top, left + width, top + height))
        view = np.asarray(cut.resize((32, 32), Image.Resampling.BILINEAR))
        view = view[:, ::-1] if flip[row] else view
        for which in order[row] if used[row] else ():
            if which == 3:
                view = pillow_hue(view, float(strength[row, 3]))
            else:
                enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which]
                view = np.asarray(enhance(Image.fromarray(view)).enhance(float(strength[row, which])))
        if gray[row]:
            view = np.repeat(np.asarray(Image.fromarray(view).convert("L"))[..., None], 3, axis=2)
        differences.append(np.abs(pairs[row].astype(int) - view))
    assert np.mean(np.stack(differences) > 0) < 0.02
    assert np.mean(np.stack(differences) > 8) < 0.0005
    assert 0 < used.sum() < 24
    assert 0 < gray.sum() < 24


@pytest.mark.slow
def test_a_shorter_batch_has_the_same_pairs(images):
    pair = jax.jit(views.simclr_pair)
    np.testing.assert_array_equal(pair(jax.random.key(4), images[:7]), pair(jax.random.key(4), images[:12])[:14])
