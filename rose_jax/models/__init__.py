"""Networks. The only room with flax modules."""

from collections.abc import Callable

from rose_jax.config import ModelOptions
from rose_jax.models.resnet import resnet18
from rose_jax.models.tiny import tiny
from rose_jax.types import Encoder

ENCODERS: dict[str, Callable[[int, str, str], Encoder]] = {"resnet18": resnet18, "tiny": tiny}


def make_encoder(options: ModelOptions, image_size: int = 0) -> Encoder:
    """image_size: for the stem by_size."""
    stem = stem_for(image_size) if options.stem == "by_size" else options.stem
    return ENCODERS[options.encoder](options.width, stem, options.compute_dtype)


def stem_for(image_size: int) -> str:
    """What the paper's methods use at such a size: up to TinyImageNet's 64 pixels full resolution, else a max-pool."""
    return "small" if image_size <= 64 else "conv3_pool" if image_size <= 128 else "conv7_pool"
