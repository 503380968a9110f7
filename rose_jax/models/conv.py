"""A convolution whose weight gradient is summed over a few images at a time, for XLA on a CPU.

There the gradient of a kernel over a whole batch of large maps falls out of the caches and costs ten times the forward
pass, in parts of 16 images twice as much. `scripts/bench.py conv` measures what it is worth.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

IMAGES_AT_ONCE = 16
LARGE_MAP = 32 * 32  # smaller ones gain nothing


def convolution() -> Any:
    """What flax's Conv should call: None, its own, where the batch is split over devices or the device is no CPU."""
    return summed_in_parts if jax.default_backend() == "cpu" and jax.device_count() == 1 else None


def summed_in_parts(inputs: jax.Array, kernel: jax.Array, strides, padding, **options) -> jax.Array:
    """jax.lax.conv_general_dilated for inputs [n, h, w, c], with the same value and, up to rounding, gradient."""

    def convolve(inputs, kernel):
        return jax.lax.conv_general_dilated(inputs, kernel, strides, padding, **options)

    n, height, width, _ = inputs.shape
    if n <= IMAGES_AT_ONCE or height * width < LARGE_MAP:
        return convolve(inputs, kernel)

    @jax.custom_vjp
    def apply(inputs, kernel):
        return convolve(inputs, kernel)

    def forward(inputs, kernel):
        return convolve(inputs, kernel), (inputs, kernel)

    def backward(residuals, out):
        inputs, kernel = residuals
        (d_inputs,) = jax.vjp(lambda x: convolve(x, kernel), inputs)[1](out)
        d_kernel = jnp.zeros_like(kernel)
        # Not a loop of XLA's: inside one, its fast convolutions are not used.
        for first in range(0, n, IMAGES_AT_ONCE):
            part = slice(first, first + IMAGES_AT_ONCE)
            d_kernel += jax.vjp(partial(convolve, inputs[part]), kernel)[1](out[part])[0]
        return d_inputs, d_kernel

    apply.defvjp(forward, backward)
    return apply(inputs, kernel)
