"""ResNet-18 as the compared methods build it: last ReLU kept, global average pool, d = 8 x width."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rose_jax.errors import unknown
from rose_jax.models.conv import convolution
from rose_jax.models.norm import BatchNorm, at_least_float32
from rose_jax.types import Encoder, Tail

# stem name -> (kernel, stride, max-pool)
STEMS = {
    "small": (3, 1, False),  # CIFAR, TinyImageNet, digits
    "conv3_pool": (3, 1, True),  # ImageNet-100 in the public code of LDC and ADC
    "conv7_pool": (7, 2, True),  # torchvision's; FCS and EFC
}
BLOCKS_PER_STAGE = (2, 2, 2, 2)


def resnet18(width: int = 64, stem: str = "small", compute_dtype: str = "float32") -> Encoder:
    """`norm` of apply is "running" (evaluation) or "batch" (training); `mask` [n] says which rows count."""
    if stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    dtype = jnp.dtype(compute_dtype)
    layers = tuple(f"layer4_{block}" for block in range(BLOCKS_PER_STAGE[3]))
    return from_module(_ResNet(width, stem, dtype), 8 * width, _LastStage(width, dtype), layers)


def from_module(module: nn.Module, feature_dim: int, tail: nn.Module, layers: tuple[str, ...]) -> Encoder:
    """The encoder of a module that is called with (images, mask, norm) and returns {"layer3", "feature"}.

    tail: what makes features of layer3, with the parameters of these layers alone.
    """

    def init(key: jax.Array, image: jax.Array) -> Any:
        shapes = jax.eval_shape(partial(module.init, norm="batch"), key, image[None], jnp.ones((1,)))
        return _initial_values(key, shapes)

    def apply(
        variables: Any, images: jax.Array, *, norm: str = "running", mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        return _apply(module, variables, images, norm, mask)

    def apply_tail(
        variables: Any, layer3: jax.Array, *, norm: str = "running", mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        return _apply(tail, variables, layer3, norm, mask)

    return Encoder(init, apply, feature_dim, Tail(layers, apply_tail))


def _apply(module: nn.Module, variables: Any, x: jax.Array, norm: str, mask: jax.Array | None) -> tuple[Any, Any]:
    mask = jnp.ones(x.shape[0]) if mask is None else mask
    if norm == "running":
        return module.apply(variables, x, mask, norm), variables["batch_stats"]
    out, mutated = module.apply(variables, x, mask, norm, mutable=["batch_stats"])
    return out, mutated["batch_stats"]


class _ResNet(nn.Module):
    width: int
    stem: str
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> dict[str, jax.Array]:
        kernel, stride, pool = STEMS[self.stem]
        x = x.astype(self.dtype)
        x = conv_layer(self.width, kernel, stride, self.dtype, "stem")(x)
        x = nn.relu(BatchNorm(name="stem_norm")(x, mask, norm))
        if pool:
            x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        outputs = {}
        for stage in range(3):
            x = _stage(stage, self.width, self.dtype, x, mask, norm)
        outputs["layer3"] = x
        outputs["feature"] = pooled(_stage(3, self.width, self.dtype, x, mask, norm))
        return outputs


class _LastStage(nn.Module):
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> jax.Array:
        return pooled(_stage(3, self.width, self.dtype, x.astype(self.dtype), mask, norm))


def _stage(stage: int, width: int, dtype: Any, x: jax.Array, mask: jax.Array, norm: str) -> jax.Array:
    """The blocks layer{stage + 1}_*, submodules of the module that calls this."""
    for block in range(BLOCKS_PER_STAGE[stage]):
        stride = 2 if stage > 0 and block == 0 else 1
        x = _BasicBlock(width * 2**stage, stride, dtype, name=f"layer{stage + 1}_{block}")(x, mask, norm)
    return x


def pooled(x: jax.Array) -> jax.Array:
    """[n, h, w, d] -> [n, d]."""
    return at_least_float32(x).mean((1, 2))


class _BasicBlock(nn.Module):
    channels: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> jax.Array:
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

    All kernels are cut from one draw: XLA takes seconds to compile twenty draws, 0.3 s for one.
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
