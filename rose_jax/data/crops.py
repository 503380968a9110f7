"""Crops of full-resolution images on the host; the random one and the 8/7 one are torchvision's."""

import math

import numpy as np
from PIL import Image

Box = tuple[int, int, int, int]  # left, top, right, bottom

_SCALE = (0.08, 1.0)  # of the image's area
_RATIO = (3 / 4, 4 / 3)  # width over height
_TRIES = 10


def random_resized_crop(image: Image.Image, size: int, rng: np.random.Generator) -> np.ndarray:
    """uint8 [size, size, 3]: a random box of the image, enlarged or reduced bilinearly (antialiased)."""
    box = random_box(image.width, image.height, rng)
    return np.asarray(image.crop(box).resize((size, size), Image.Resampling.BILINEAR))


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Area uniform in 0.08..1 of the image's, ratio log-uniform in 3/4..4/3; after ten that do not fit, central."""
    log_ratio = np.log(_RATIO)
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*_SCALE)
        ratio = math.exp(rng.uniform(*log_ratio))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(rng.integers(0, height - h + 1))
            left = int(rng.integers(0, width - w + 1))
            return left, top, left + w, top + h
    return central_box(width, height)


def central_box(width: int, height: int) -> Box:
    """The largest central box with a ratio of 3/4..4/3."""
    w, h = width, height
    if width / height < _RATIO[0]:
        h = round(width / _RATIO[0])
    elif width / height > _RATIO[1]:
        w = round(height * _RATIO[1])
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def fit_square(image: Image.Image, size: int) -> np.ndarray:
    """uint8 [size, size, 3]: the shorter side to `size`, then the central square; an image of that size as it is."""
    width, height = (round(size * side / min(image.size)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


def resize_and_center_crop(image: Image.Image, size: int) -> np.ndarray:
    """uint8 [size, size, 3]: the shorter side to 8/7 of `size` (256 for 224), then the central square."""
    short = size * 256 // 224
    if image.width <= image.height:
        width, height = short, int(short * image.height / image.width)
    else:
        width, height = int(short * image.width / image.height), short
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return np.asarray(resized.crop((left, top, left + size, top + size)))
