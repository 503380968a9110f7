"""A convolution whose weight gradient is summed over a few images at a time, for XLA on a CPU.

On a CPU the kernel's gradient over a whole batch of large maps exceeds the caches and costs ten times the forward
pass; in parts of 16 images it costs twice the forward pass (scripts/bench.py conv).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

IMAGES_AT_ONCE = 16
LARGE_MAP = 32 * 32  # smaller ones gain nothing


def convolution() -> Callable[..., Array] | None:
    """What flax's Conv should call: `summed_in_parts` if there is one device and it is a CPU, else its own (None)."""
    return summed_in_parts if jax.default_backend() == "cpu" and jax.device_count() == 1 else None


def summed_in_parts(inputs: Array, kernel: Array, strides: Any, padding: Any, **options: Any) -> Array:
    """jax.lax.conv_general_dilated for inputs [n, h, w, c], with the same value and, up to rounding, gradient."""

    def convolve(inputs: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(inputs, kernel, strides, padding, **options)

    n, height, width, _ = inputs.shape
    if n <= IMAGES_AT_ONCE or height * width < LARGE_MAP:
        return convolve(inputs, kernel)

    @jax.custom_vjp
    def apply(inputs: Array, kernel: Array) -> Array:
        return convolve(inputs, kernel)

    def forward(inputs: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
        return convolve(inputs, kernel), (inputs, kernel)

    def backward(residuals: tuple[Array, Array], out: Array) -> tuple[Array, Array]:
        inputs, kernel = residuals
        (d_inputs,) = jax.vjp(lambda x: convolve(x, kernel), inputs)[1](out)
        d_kernel = jnp.zeros_like(kernel)
        # A Python loop, because XLA does not use its fast convolutions inside its own loops.
        for first in range(0, n, IMAGES_AT_ONCE):
            part = slice(first, first + IMAGES_AT_ONCE)
            d_kernel += jax.vjp(partial(convolve, inputs[part]), kernel)[1](out[part])[0]
        return d_inputs, d_kernel

    apply.defvjp(forward, backward)
    return apply(inputs, kernel)
