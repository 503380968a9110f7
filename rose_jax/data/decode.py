"""Image files into RGB pixels, with errors that name the image."""

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from rose_jax.errors import UserError


def open_rgb(data: bytes, name: str) -> Image.Image:
    """A decoded PNG or JPEG file; gray, palette and CMYK images become RGB."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError or its own, by file type
        raise _undecodable(name, error) from error


def open_upright(data: bytes, name: str) -> Image.Image:
    """An image file of any kind as RGB, turned as its camera was held; 16 bits of gray become 8."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I"):
                levels = np.asarray(image).astype(np.int64)
                return Image.fromarray(
                    (levels >> 8 if levels.max() > 255 else levels).clip(0, 255).astype(np.uint8)
                ).convert("RGB")
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:
        raise _undecodable(name, error) from error


def checked_image(data: bytes, name: str, side: int = 0) -> bytes:
    """The same bytes, if they decode, to side x side pixels unless that is 0.

    A JPEG is tried at 1/8 of its size: still all bytes are read, but faster.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            size = image.size
            image.draft("RGB", (image.width // 8, image.height // 8))
            image.load()
    except Exception as error:
        raise _undecodable(name, error) from error
    if side and size != (side, side):
        raise UserError(
            f"{name} is {size[0]}x{size[1]} pixels, expected {side}x{side}. Replace that file by the published one and "
            "prepare the set again."
        )
    return data


def _undecodable(name: str, error: Exception) -> UserError:
    # Pillow would name the object in memory that it was given.
    why = "of no kind that Pillow reads" if isinstance(error, UnidentifiedImageError) else error
    return UserError(f"{name} does not decode as an image ({why}). Replace or remove that file.")
