"""BatchNorm as torch has it, with a mask: padding rows of a batch must not enter its statistics."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class BatchNorm(nn.Module):
    """Per-channel normalisation of [n, h, w, c].

    As in torch: momentum 0.1 there is 0.9 here, the batch is normalised with its biased variance, and the
    running variance keeps the unbiased one (flax's own BatchNorm keeps the biased one).
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, norm: str) -> jax.Array:
        """norm: "running" normalises with the running statistics, "batch" with the batch's (and updates)."""
        channels = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        if norm == "running":
            mean, var = running_mean.value, running_var.value
        else:
            # Statistics are float32 even where activations are bfloat16. Under jit the sums run over the whole batch,
            # also if it is split over devices.
            x32 = at_least_float32(x)
            weight = mask.astype(x32.dtype)[:, None, None, None]
            count = jnp.maximum(weight.sum(), 1.0) * x.shape[1] * x.shape[2]
            mean = (x32 * weight).sum((0, 1, 2)) / count
            var = (jnp.square(x32 - mean[None, None, None, :]) * weight).sum((0, 1, 2)) / count
            if not self.is_initializing() and self.is_mutable_collection("batch_stats"):
                keep = self.momentum
                unbiased = var * (count / jnp.maximum(count - 1.0, 1.0))
                running_mean.value = keep * running_mean.value + (1 - keep) * mean
                running_var.value = keep * running_var.value + (1 - keep) * unbiased
        factor = scale * jax.lax.rsqrt(var + self.epsilon)
        shift = bias - mean * factor
        out = x * factor[None, None, None, :] + shift[None, None, None, :]
        return out.astype(x.dtype)


def at_least_float32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def norm_params(params: Any) -> Any:
    """Scales and biases of all norms, in the tree of the parameters without anything else."""
    found = {}
    for name, layer in params.items():
        if "scale" in layer:
            found[name] = layer
        elif "kernel" not in layer and (inside := norm_params(layer)):
            found[name] = inside
    return found


def with_norm_params(params: Any, norms: Any) -> Any:
    """The parameters with scales and biases from `norms`."""
    return params | {
        name: norm if "scale" in norm else with_norm_params(params[name], norm) for name, norm in norms.items()
    }
