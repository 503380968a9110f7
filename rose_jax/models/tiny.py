"""Three convolutions with the interface of the ResNet, for tests and quick trials: it compiles in seconds less."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rose_jax.models.norm import BatchNorm, at_least_float32
from rose_jax.models.resnet import conv_layer, from_module
from rose_jax.types import Encoder

STAGES = ((2, 2), (4, 2), (8, 1))  # (channels by width, stride) of each convolution


def tiny(width: int = 64, stem: str = "small", compute_dtype: str = "float32") -> Encoder:
    """Arguments as of resnet18; there is no stem to choose."""
    return from_module(_Tiny(width=width, dtype=jnp.dtype(compute_dtype)), 8 * width)


class _Tiny(nn.Module):
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> dict[str, jax.Array]:
        x = x.astype(self.dtype)
        outputs = {}
        for stage, (channels, stride) in enumerate(STAGES):
            x = conv_layer(channels * self.width, 3, stride, self.dtype, f"conv{stage}")(x)
            x = nn.relu(BatchNorm(name=f"norm{stage}")(x, mask, norm))
            if stage == 1:
                outputs["layer3"] = x
        outputs["feature"] = at_least_float32(x).mean((1, 2))
        return outputs
