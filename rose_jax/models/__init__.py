"""Networks. The only room that imports flax modules."""

from rose_jax.config import ModelOptions
from rose_jax.models import resnet, tiny
from rose_jax.models.resnet import Encoder

ENCODERS = {"resnet18": resnet.resnet18, "tiny": tiny.tiny}


def make_encoder(options: ModelOptions) -> Encoder:
    return ENCODERS[options.encoder](options.width, options.stem, options.compute_dtype)
