"""Convolutions for XLA on a CPU, computed in the way that is fastest for their shape (scripts/bench.py conv).

XLA's own convolution is slow there in two cases. On maps of a few pixels one matrix product over patches does the same
in a tenth of the time. The kernel's gradient over a whole batch of large maps exceeds the caches; in parts of 16 images
it does not.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rose_jax.runtime.target import Target, target

SMALL_MAP = 2 * 2  # outputs of at most so many pixels are products over patches
LARGE_MAP = 16 * 16  # inputs of at least so many pixels have their kernel's gradient summed in parts
IMAGES_AT_ONCE = 16


def convolution() -> Callable[..., Array] | None:
    """What flax's Conv should call: `by_shape` if there is one device and it is a CPU, else its own (None)."""
    return by_shape if target() == Target("cpu", 1) else None


def by_shape(inputs: Array, kernel: Array, strides: Any, padding: Any, **options: Any) -> Array:
    """jax.lax.conv_general_dilated for inputs [n, h, w, c] and a kernel [k, k, c, d] with an edge of k // 2.

    Value and gradient are the same up to rounding.
    """
    n, height, width, _ = inputs.shape
    stride = strides[0]
    if -(-height // stride) * -(-width // stride) <= SMALL_MAP:
        return patches(inputs, kernel.shape[0], stride) @ kernel.reshape(-1, kernel.shape[-1])

    def convolve(inputs: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(inputs, kernel, strides, padding, **options)

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


def patches(inputs: Array, side: int, stride: int) -> Array:
    """The side x side window around every stride-th pixel, zeros beyond the edge: [n, h', w', side side c]."""
    _, height, width, _ = inputs.shape
    edge = side // 2
    padded = jnp.pad(inputs, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    taps = [
        padded[:, row : row + height : stride, column : column + width : stride]
        for row in range(side)
        for column in range(side)
    ]
    return jnp.concatenate(taps, axis=-1)
