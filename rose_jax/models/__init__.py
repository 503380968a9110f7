"""Networks. The only room with flax modules."""

from collections.abc import Callable
from typing import Any

import jax

from rose_jax.config import ModelOptions
from rose_jax.errors import UserError
from rose_jax.models.resnet import resnet18
from rose_jax.models.tiny import tiny
from rose_jax.types import Encoder

ENCODERS: dict[str, Callable[[int, str, str], Encoder]] = {"resnet18": resnet18, "tiny": tiny}


def make_encoder(options: ModelOptions, image_size: int = 0) -> Encoder:
    """image_size: of the images it will see, for the stem by_size."""
    encoder = ENCODERS[options.encoder](options.width, stem_of(options, image_size), options.compute_dtype)
    if not options.enlarge:
        return encoder
    if options.enlarge < image_size:
        raise UserError(
            f"config.model.enlarge is {options.enlarge}, but images have {image_size} pixels a side already: give a larger "
            "side, or 0 to leave them as they are."
        )
    return enlarging(encoder, options.enlarge)


def enlarging(encoder: Encoder, side: int) -> Encoder:
    """The encoder behind a bilinear resize to side x side, pixels' centres half a pixel from the edge, as PyTorch's."""

    def apply(
        variables: Any, images: jax.Array, *, norm: str = "running", mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        shape = (len(images), side, side, images.shape[-1])
        return encoder.apply(variables, jax.image.resize(images, shape, "bilinear"), norm=norm, mask=mask)

    return encoder._replace(apply=apply)


def stem_of(options: ModelOptions, image_size: int) -> str:
    """The stem's name for images of such a size."""
    return stem_for(options.enlarge or image_size) if options.stem == "by_size" else options.stem


def stem_for(image_size: int) -> str:
    """What the paper's methods use at such a size: up to TinyImageNet's 64 pixels full resolution, else a max-pool."""
    return "small" if image_size <= 64 else "conv3_pool" if image_size <= 128 else "conv7_pool"
