"""Photographs as users have them: a folder for each class, sizes and kinds of files mixed."""

import numpy as np
from PIL import Image

from rose_jax.data.synthetic import synthetic_image

CLASSES = tuple(f"species {i:02d}" for i in range(12))


def write_pictures(folder, per_class=8, classes=CLASSES, first=0):
    """JPEGs that can be told apart, of sizes from 20 x 31 to 55 x 66; each class has one PNG with an alpha channel."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(first, first + per_class):
            height, width = 20 + (7 * i + label) % 36, 31 + (11 * i) % 36
            image = Image.fromarray(synthetic_image(label, 0, i, height, width))
            if i == 0:
                image.convert("RGBA").save(folder / name / "0.png")
            else:
                image.save(folder / name / f"{i}.JPG", quality=95)
    return folder


def center(pixels, size):
    """The shorter side is `size` already: the central square."""
    top, left = ((side - size) // 2 for side in pixels.shape[:2])
    return np.asarray(pixels)[top : top + size, left : left + size]
