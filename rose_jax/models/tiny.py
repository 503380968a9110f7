"""Three convolutions that look to all others like a ResNet-18, for tests and quick trials: seconds less to compile."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rose_jax.models.norm import BatchNorm, at_least_float32
from rose_jax.models.resnet import Encoder, conv_layer, from_module

STAGES = ((2, 2), (4, 2), (8, 1))  # (channels by width, stride) of each convolution


def tiny(width: int = 64, stem: str = "small", compute_dtype: str = "float32") -> Encoder:
    """As models.resnet.resnet18, but for the stem, which it has not."""
    return from_module(_Tiny(width=width, dtype=jnp.dtype(compute_dtype)), 8 * width)


class _Tiny(nn.Module):
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, x, mask, norm):
        x = x.astype(self.dtype)
        outputs = {}
        for stage, (channels, stride) in enumerate(STAGES):
            x = conv_layer(channels * self.width, 3, stride, self.dtype, f"conv{stage}")(x)
            x = nn.relu(BatchNorm(name=f"norm{stage}")(x, mask, norm))
            if stage == 1:
                outputs["layer3"] = x
        outputs["feature"] = at_least_float32(x).mean((1, 2))
        return outputs
