"""ResNet-18 as the compared methods build it: last ReLU kept, global average pool, d = 8 x width."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rose_jax.errors import unknown
from rose_jax.models.conv import convolution
from rose_jax.models.norm import BatchNorm, at_least_float32

# stem name -> (kernel, stride, max-pool)
STEMS = {
    "small": (3, 1, False),  # CIFAR, TinyImageNet, digits
    "conv3_pool": (3, 1, True),  # ImageNet-100 in the public code of LDC and ADC
    "conv7_pool": (7, 2, True),  # torchvision's; FCS and EFC
}
BLOCKS_PER_STAGE = (2, 2, 2, 2)


class Encoder(NamedTuple):
    """An encoder as two pure functions; a frozen teacher is just another variables tree."""

    init: Callable[..., Any]  # (key, image [h, w, 3]) -> variables
    apply: Callable[..., Any]  # (variables, images, *, norm, mask) -> ({"layer3", "feature"}, batch_stats)
    feature_dim: int


def resnet18(width: int = 64, stem: str = "small", compute_dtype: str = "float32") -> Encoder:
    """`norm` of apply is "running" (evaluation) or "batch" (training); `mask` [n] says which rows count."""
    if stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    return from_module(_ResNet(width=width, stem=stem, dtype=jnp.dtype(compute_dtype)), 8 * width)


def from_module(module: nn.Module, feature_dim: int) -> Encoder:
    """Of a module whose call takes (images, mask, norm) and gives {"layer3", "feature"}."""

    def init(key, image):
        shapes = jax.eval_shape(partial(module.init, norm="batch"), key, image[None], jnp.ones((1,)))
        return _initial_values(key, shapes)

    def apply(variables, images, *, norm="running", mask=None):
        mask = jnp.ones(images.shape[0]) if mask is None else mask
        if norm == "running":
            return module.apply(variables, images, mask, norm), variables["batch_stats"]
        out, mutated = module.apply(variables, images, mask, norm, mutable=["batch_stats"])
        return out, mutated["batch_stats"]

    return Encoder(init, apply, feature_dim)


class _ResNet(nn.Module):
    width: int
    stem: str
    dtype: Any

    @nn.compact
    def __call__(self, x, mask, norm):
        kernel, stride, pool = STEMS[self.stem]
        x = x.astype(self.dtype)
        x = conv_layer(self.width, kernel, stride, self.dtype, "stem")(x)
        x = nn.relu(BatchNorm(name="stem_norm")(x, mask, norm))
        if pool:
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        outputs = {}
        for stage, blocks in enumerate(BLOCKS_PER_STAGE):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                channels = self.width * 2**stage
                x = _BasicBlock(channels, stride, self.dtype, name=f"layer{stage + 1}_{block}")(x, mask, norm)
            if stage == 2:
                outputs["layer3"] = x
        outputs["feature"] = at_least_float32(x).mean((1, 2))
        return outputs


class _BasicBlock(nn.Module):
    channels: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x, mask, norm):
        shortcut = x
        x = conv_layer(self.channels, 3, self.stride, self.dtype, "conv1")(x)
        x = nn.relu(BatchNorm(name="norm1")(x, mask, norm))
        x = conv_layer(self.channels, 3, 1, self.dtype, "conv2")(x)
        x = BatchNorm(name="norm2")(x, mask, norm)
        if shortcut.shape != x.shape:
            shortcut = conv_layer(self.channels, 1, self.stride, self.dtype, "downsample")(shortcut)
            shortcut = BatchNorm(name="downsample_norm")(shortcut, mask, norm)
        return nn.relu(x + shortcut)


def conv_layer(features: int, kernel: int, stride: int, dtype: Any, name: str) -> nn.Conv:
    make = partial(nn.Conv, features, (kernel, kernel), strides=(stride, stride), use_bias=False)
    make = partial(make, conv_general_dilated=convolution())
    return make(padding=kernel // 2, dtype=dtype, name=name)  # torch pads k // 2 on both sides


def _initial_values(key: jax.Array, shapes: Any) -> Any:
    """Kaiming normal, fan-out, as torchvision initialises ResNets; norms start as the identity.

    All kernels are cut from one draw: XLA takes seconds to compile twenty random draws, and 0.3 for one.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    kernels = [leaf.size for path, leaf in leaves if path[-1].key == "kernel"]
    draws = jax.random.normal(key, (sum(kernels),))
    values, used = [], 0
    for path, leaf in leaves:
        if path[-1].key == "kernel":
            height, width, _, channels = leaf.shape
            std = (2.0 / (height * width * channels)) ** 0.5
            values.append(std * draws[used : used + leaf.size].reshape(leaf.shape))
            used += leaf.size
        else:
            make = jnp.ones if path[-1].key in ("scale", "var") else jnp.zeros
            values.append(make(leaf.shape))
    return jax.tree.unflatten(structure, values)
