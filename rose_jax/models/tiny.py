"""Three convolutions with the interface of the ResNet, for tests and quick trials: it compiles in seconds less."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rose_jax.models.norm import BatchNorm
from rose_jax.models.resnet import conv_layer, from_module, pooled
from rose_jax.types import Encoder

STAGES = ((2, 2), (4, 2), (8, 1))  # (channels by width, stride) of each convolution


def tiny(width: int = 64, stem: str = "small", compute_dtype: str = "float32") -> Encoder:
    """Arguments as of resnet18; there is no stem to choose."""
    dtype = jnp.dtype(compute_dtype)
    return from_module(_Tiny(width, dtype), 8 * width, _LastStage(width, dtype), ("conv2", "norm2"))


class _Tiny(nn.Module):
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> dict[str, jax.Array]:
        x = x.astype(self.dtype)
        for stage in range(2):
            x = _stage(stage, self.width, self.dtype, x, mask, norm)
        return {"layer3": x, "feature": pooled(_stage(2, self.width, self.dtype, x, mask, norm))}


class _LastStage(nn.Module):
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> jax.Array:
        return pooled(_stage(2, self.width, self.dtype, x.astype(self.dtype), mask, norm))


def _stage(stage: int, width: int, dtype: Any, x: jax.Array, mask: jax.Array, norm: str) -> jax.Array:
    channels, stride = STAGES[stage]
    x = conv_layer(channels * width, 3, stride, dtype, f"conv{stage}")(x)
    return nn.relu(BatchNorm(name=f"norm{stage}")(x, mask, norm))
