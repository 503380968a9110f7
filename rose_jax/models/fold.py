"""Re-parameterisation on the variables of an ordinary encoder: BatchNorm folded, 1x1 adapters fused (SSRE).

No module is needed for either. Under running statistics the folded tree is the network whose convolutions carry BatchNorm,
and a convolution is linear, so that kernel + padded adapter is the 3x3 convolution with a 1x1 one beside it.
"""

import re

import jax
import jax.numpy as jnp

from rose_jax.errors import UserError
from rose_jax.models.norm import BatchNorm
from rose_jax.types import PyTree

# The 3x3 convolutions inside blocks: all but stem and downsample of the ResNet, all but the first one of `tiny`.
ADAPTED = re.compile(r"layer\d+_\d+/conv\d+|conv[1-9]")


def fold(variables: PyTree) -> PyTree:
    """w <- w gamma / sigma, and a shift of beta - mu gamma / sigma is all that is left of BatchNorm.

    The norm that follows has a factor of 1 under running statistics, up to rounding. These statistics are what the folded
    convolution gives out, mu gamma / sigma and (gamma / sigma)^2 v, lest methods that normalise by the batch
    (norm="batch") meet another network than the one that was folded.
    """
    params, stats = _folded(variables["params"], variables["batch_stats"])
    return {"params": params, "batch_stats": stats}


def _folded(params: PyTree, stats: PyTree) -> tuple[PyTree, PyTree]:
    params, stats = dict(params), dict(stats)
    for name, layer in tuple(params.items()):
        if "kernel" in layer:
            norm = _norm_after(name)
            before, seen = params[norm], stats[norm]
            factor = before["scale"] * jax.lax.rsqrt(seen["var"] + BatchNorm.epsilon)
            var = jnp.square(factor) * seen["var"]
            params[name] = {"kernel": layer["kernel"] * factor[None, None, None, :]}
            params[norm] = {"scale": jnp.sqrt(var + BatchNorm.epsilon), "bias": before["bias"]}
            stats[norm] = {"mean": seen["mean"] * factor, "var": var}
        elif "scale" not in layer:
            params[name], stats[name] = _folded(layer, stats[name])
    return params, stats


def _norm_after(conv: str) -> str:
    """conv1 -> norm1, stem -> stem_norm, downsample -> downsample_norm."""
    return conv.replace("conv", "norm") if conv.startswith("conv") else f"{conv}_norm"


def zero_adapters(params: PyTree) -> PyTree:
    """A 1x1 kernel [1, 1, c, c'] of zeros for each 3x3 one inside a block, in the tree of the parameters."""
    adapters = _zeros(params, "")
    if not adapters:
        raise UserError("This encoder has no convolution that an adapter belongs to: use resnet18 or tiny.")
    return adapters


def _zeros(params: PyTree, path: str) -> PyTree:
    found = {}
    for name, layer in params.items():
        if "kernel" in layer:
            if ADAPTED.fullmatch(path + name):
                found[name] = jnp.zeros((1, 1, *layer["kernel"].shape[2:]), layer["kernel"].dtype)
        elif "scale" not in layer and (inside := _zeros(layer, f"{path}{name}/")):
            found[name] = inside
    return found


def fuse(params: PyTree, adapters: PyTree) -> PyTree:
    """Each 3x3 kernel + its adapter, which is zero around the centre: one convolution for the two."""
    fused = dict(params)
    for name, adapter in adapters.items():
        if isinstance(adapter, dict):
            fused[name] = fuse(params[name], adapter)
        else:
            padded = jnp.pad(adapter, ((1, 1), (1, 1), (0, 0), (0, 0)))
            fused[name] = params[name] | {"kernel": params[name]["kernel"] + padded}
    return fused
