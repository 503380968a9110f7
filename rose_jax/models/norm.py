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
            weight = mask.astype(jnp.promote_types(x.dtype, jnp.float32))
            count = jnp.maximum(weight.sum(), 1.0) * x.shape[1] * x.shape[2]
            mean, var = moments(x, weight / count, running_mean.value)
            if not self.is_initializing() and self.is_mutable_collection("batch_stats"):
                keep = self.momentum
                unbiased = var * (count / jnp.maximum(count - 1.0, 1.0))
                running_mean.value = keep * running_mean.value + (1 - keep) * mean
                running_var.value = keep * running_var.value + (1 - keep) * unbiased
        factor = scale * jax.lax.rsqrt(var + self.epsilon)
        # Not x * factor + (bias - mean * factor), whose gradient by the factor cancels where the mean is large.
        out = (at_least_float32(x) - mean[None, None, None, :]) * factor[None, None, None, :] + bias[
            None, None, None, :
        ]
        return out.astype(x.dtype)


# A shift whose squared distance from the mean is so many variances costs ten of float32's 24 bits.
_FAR = 2.0**10


@jax.custom_vjp
def moments(x: jax.Array, weight: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance [c] of x [n, h, w, c], image i weighing weight[i] in each pixel (they sum to 1).

    In one pass: with y = x - shift, the mean is shift + E y and the variance E y^2 - (E y)^2, whatever the shift. Both
    sums are made where the map is (a TPU makes them while it writes the map) and over all devices in one reduction.
    Rounding errors are eps (E y)^2, so the shift should be near the mean: the running mean is, and it is known beforehand.
    Where it is not (at the start, or under a network that has changed), a second pass sums about the mean that was found. Not so
    for maps in bfloat16: from a running mean of 0 on, float32 sums lose less than the rounding of such a map to 8 bits has
    lost before.
    """
    return _one_pass(x, weight, shift)[0]


_Kept = tuple[jax.Array, jax.Array, jax.Array]  # x, weight, mean


def _one_pass(x: jax.Array, weight: jax.Array, shift: jax.Array) -> tuple[tuple[jax.Array, jax.Array], _Kept]:
    def about(x: jax.Array, centre: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mean, variance, and how far the mean is from the centre."""
        y = at_least_float32(x) - centre[None, None, None, :]
        share = weight[:, None, None, None]
        off, square = (y * share).sum((0, 1, 2)), (jnp.square(y) * share).sum((0, 1, 2))
        return centre + off, jnp.maximum(square - jnp.square(off), 0.0), off

    mean, var, off = about(x, shift)
    if jnp.finfo(x.dtype).bits >= 32:
        far = jnp.any(jnp.square(off) > _FAR * var)
        mean, var = jax.lax.cond(far, lambda x, mean: about(x, mean)[:2], lambda x, mean: (mean, var), x, mean)
    return (mean, var), (x, weight, mean)


def _gradients(kept: _Kept, out: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None, None]:
    """d mean / dx = w, d var / dx = 2 w (x - mean); none of the shift, on which neither depends."""
    x, weight, mean = kept
    d_mean, d_var = (part[None, None, None, :] for part in out)
    off = at_least_float32(x) - mean[None, None, None, :]
    return ((d_mean + 2 * d_var * off) * weight[:, None, None, None]).astype(x.dtype), None, None


moments.defvjp(_one_pass, _gradients)


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
