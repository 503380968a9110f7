"""Networks. The only room that imports flax modules."""

from rose_jax.config import ModelOptions
from rose_jax.models.resnet import resnet18
from rose_jax.types import Encoder


def make_encoder(options: ModelOptions) -> Encoder:
    return resnet18(options.width, options.stem, options.compute_dtype)
