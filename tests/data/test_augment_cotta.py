"""CoTTA's augmentation against NumPy, colorsys and SciPy; its draws, and who shares them."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage, stats

from rose_jax.data.augment import cotta

SIZE = 12


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    made = rng.random((3, SIZE, SIZE, 3)).astype(np.float32)
    made[0, :2] = made[0, :2, :, :1]  # grey
    made[1, 0] = 0  # black
    return made


def gray(image):
    return image @ np.array([0.2989, 0.587, 0.114])


def numpy_change(image, which, amount):
    """One change of colour of an image [h, w, 3] in float64."""
    if which == 0:
        return np.clip(amount * image, 0, 1)
    if which == 1:
        return np.clip(amount * image + (1 - amount) * gray(image).mean(), 0, 1)
    if which == 2:
        return np.clip(amount * image + (1 - amount) * gray(image)[..., None], 0, 1)
    if which == 3:
        turned = [colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3)]
        return np.array([colorsys.hsv_to_rgb((h + amount) % 1, s, v) for h, s, v in turned]).reshape(image.shape)
    return np.clip(image, 1e-8, 1) ** amount


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]])
def test_colours_change_in_the_order_drawn(images, order):
    strength = np.array([1.2, 0.8, 1.4, -0.05, 0.75], np.float32)
    ours = jax.jit(cotta.jitter)(images, np.array(order, np.int32), strength)
    for mine, image in zip(ours, images.astype(np.float64), strict=True):
        for which in order:
            image = numpy_change(image, which, float(strength[which]))
        np.testing.assert_allclose(mine, image, atol=2e-5)


@pytest.mark.parametrize("degrees", [0.0, 15.0, -9.0])
def test_warp_and_blur_equal_scipys_on_the_padded_image(images, degrees):
    """The whole padded image is warped and blurred, then its middle cut out."""
    drawn = cotta.Draw(
        None, None, np.float32(np.radians(degrees)), np.float32([2, -1]), np.float32(1.07), np.float32(0.45), None
    )
    ours = jax.jit(lambda x: cotta.blur(cotta.warp(x, drawn), drawn.sigma))(images)
    pad, side = SIZE // 2, 2 * SIZE
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    angle = np.radians(degrees)
    right, down = x - 2, y + 1
    source_x = (np.cos(angle) * right + np.sin(angle) * down) / 1.07 + (side - 1) / 2
    source_y = (np.cos(angle) * down - np.sin(angle) * right) / 1.07 + (side - 1) / 2
    weights = stats.norm(scale=0.45).pdf(np.arange(-2, 3))
    weights /= weights.sum()
    for mine, image in zip(ours, images.astype(np.float64), strict=True):
        for channel in range(3):
            padded = np.pad(np.pad(image[..., channel], pad, mode="edge"), 1)  # zeros beyond
            warped = ndimage.map_coordinates(padded, [source_y + 1, source_x + 1], order=1)
            blurred = ndimage.correlate1d(ndimage.correlate1d(warped, weights, 0), weights, 1)
            np.testing.assert_allclose(mine[..., channel], blurred[pad:-pad, pad:-pad], atol=2e-5)


@pytest.mark.parametrize("flip", [False, True])
def test_all_of_it_but_the_noise(images, flip):
    """Colours first, then the padded image is warped and blurred, cut out, and at last turned left to right."""
    order, strength = np.array([3, 0, 4, 2, 1], np.int32), np.array([0.8, 1.2, 0.6, 0.04, 1.2], np.float32)
    drawn = cotta.Draw(
        *(order, strength, np.float32(np.radians(7)), np.float32([1, 2]), np.float32(0.95), np.float32(0.3)),
        np.bool_(flip),
    )
    ours = jax.jit(cotta.apply)(images, drawn)
    weights = stats.norm(scale=0.3).pdf(np.arange(-2, 3))
    pad, side, angle = SIZE // 2, 2 * SIZE, np.radians(7)
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    right, down = x - 1, y - 2
    at = [
        (np.cos(angle) * down - np.sin(angle) * right) / 0.95 + (side - 1) / 2 + 1,
        (np.cos(angle) * right + np.sin(angle) * down) / 0.95 + (side - 1) / 2 + 1,
    ]
    for mine, image in zip(ours, images.astype(np.float64), strict=True):
        for which in order:
            image = numpy_change(image, which, float(strength[which]))
        for channel in range(3):
            padded = np.pad(np.pad(image[..., channel], pad, mode="edge"), 1)
            warped = ndimage.map_coordinates(padded, at, order=1)
            for axis in (0, 1):
                warped = ndimage.correlate1d(warped, weights / weights.sum(), axis)
            cut = warped[pad:-pad, pad:-pad]
            np.testing.assert_allclose(mine[..., channel], np.fliplr(cut) if flip else cut, atol=3e-5)


def test_positive_angles_turn_as_torchvisions():
    """torchvision turns by positive degrees clockwise in its affine: what was right of the centre goes down."""
    image = np.zeros((1, 9, 9, 3), np.float32)
    image[0, 4, 7] = 1
    still = cotta.Draw(None, None, None, np.zeros(2, np.float32), np.float32(1), None, None)
    turn = jax.jit(lambda x: cotta.warp(x, still._replace(radians=np.float32(np.pi / 2))))
    turned = np.asarray(turn(image))[0, 2:-2, 2:-2, 0]
    assert turned[7, 4] == pytest.approx(1, abs=1e-5)


def test_draws_are_uniform_and_whole_pixels():
    drawn = jax.jit(jax.vmap(lambda key: cotta.draw(key, 32)))(jax.random.split(jax.random.key(0), 3000))
    uniforms = {
        "radians": (drawn.radians, -np.pi / 12, np.pi / 12),
        "scale": (drawn.scale, 0.9, 1.1),
        "sigma": (drawn.sigma, 0.001, 0.5),
    } | {name: (drawn.strength[:, k], *ends) for k, (name, ends) in enumerate(cotta.JITTER.items())}
    for values, low, high in uniforms.values():
        assert stats.kstest(np.asarray(values), stats.uniform(low, high - low).cdf).pvalue > 1e-3
    shift = np.asarray(drawn.shift)
    np.testing.assert_array_equal(shift, np.round(shift))
    assert set(np.unique(shift)) == set(range(-4, 5))  # a sixteenth of the padded 64 pixels
    orders, counts = np.unique(np.asarray(drawn.order), axis=0, return_counts=True)
    assert len(orders) == 120
    assert stats.chisquare(counts).pvalue > 1e-3
    assert abs(float(np.mean(drawn.flip)) - 0.5) < 0.05


def test_one_draw_serves_the_batch_and_only_noise_differs():
    """Equal images stay equal but for the noise, and a longer batch changes nothing for the others."""
    rng = np.random.default_rng(0)
    batch = np.tile(rng.random((1, SIZE, SIZE, 3)), (6, 1, 1, 1)).astype(np.float32)
    augment = jax.jit(cotta.augment)
    seen = np.asarray(augment(jax.random.key(0), 0.5 * batch + 0.2))
    apart = (seen - seen[:1])[1:]
    assert 0 < np.abs(apart).max() < 0.05
    assert np.std(apart) == pytest.approx(cotta.NOISE * np.sqrt(2), rel=0.1)
    np.testing.assert_array_equal(augment(jax.random.key(0), 0.5 * batch[:4] + 0.2), seen[:4])
    others = np.asarray(augment(jax.random.key(1), 0.5 * batch + 0.2))
    assert np.abs(others - seen).max() > 0.05
    assert jnp.all((seen >= 0) & (seen <= 1))
