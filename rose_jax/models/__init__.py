"""Networks. The only room with flax modules."""

from collections.abc import Callable

from rose_jax.config import ModelOptions
from rose_jax.models.resnet import resnet18
from rose_jax.models.tiny import tiny
from rose_jax.types import Encoder

ENCODERS: dict[str, Callable[[int, str, str], Encoder]] = {"resnet18": resnet18, "tiny": tiny}


def make_encoder(options: ModelOptions) -> Encoder:
    return ENCODERS[options.encoder](options.width, options.stem, options.compute_dtype)
