"""AutoAugment's CIFAR-10 policy (Cubuk et al., 2019) for whole batches, as LDC and ADC apply it.

Both use DeepVoltaire's implementation in PyCIL's version, where rotations draw a sign too. This gives the same
pixels, with Pillow's rounding, resampling and grey fill.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rose_jax.data.augment import colour, warps
from rose_jax.runtime.target import target


class Operation(NamedTuple):
    """One half of a sub-policy."""

    probability: float
    name: str  # a key of MAGNITUDES
    level: int  # 0..9, an index into MAGNITUDES[name]


POLICY: tuple[tuple[Operation, Operation], ...] = (
    (Operation(0.1, "invert", 7), Operation(0.2, "contrast", 6)),
    (Operation(0.7, "rotate", 2), Operation(0.3, "translate_x", 9)),
    (Operation(0.8, "sharpness", 1), Operation(0.9, "sharpness", 3)),
    (Operation(0.5, "shear_y", 8), Operation(0.7, "translate_y", 9)),
    (Operation(0.5, "autocontrast", 8), Operation(0.9, "equalize", 2)),
    (Operation(0.2, "shear_y", 7), Operation(0.3, "posterize", 7)),
    (Operation(0.4, "color", 3), Operation(0.6, "brightness", 7)),
    (Operation(0.3, "sharpness", 9), Operation(0.7, "brightness", 9)),
    (Operation(0.6, "equalize", 5), Operation(0.5, "equalize", 1)),
    (Operation(0.6, "contrast", 7), Operation(0.6, "sharpness", 5)),
    (Operation(0.7, "color", 7), Operation(0.5, "translate_x", 8)),
    (Operation(0.3, "equalize", 7), Operation(0.4, "autocontrast", 8)),
    (Operation(0.4, "translate_y", 3), Operation(0.2, "sharpness", 6)),
    (Operation(0.9, "brightness", 6), Operation(0.2, "color", 8)),
    (Operation(0.5, "solarize", 2), Operation(0.0, "invert", 3)),
    (Operation(0.2, "equalize", 0), Operation(0.6, "autocontrast", 0)),
    (Operation(0.2, "equalize", 8), Operation(0.6, "equalize", 4)),
    (Operation(0.9, "color", 9), Operation(0.6, "equalize", 6)),
    (Operation(0.8, "autocontrast", 4), Operation(0.2, "solarize", 8)),
    (Operation(0.1, "brightness", 3), Operation(0.7, "color", 0)),
    (Operation(0.4, "solarize", 5), Operation(0.9, "autocontrast", 3)),
    (Operation(0.9, "translate_y", 9), Operation(0.7, "translate_y", 9)),
    (Operation(0.9, "autocontrast", 2), Operation(0.8, "solarize", 3)),
    (Operation(0.8, "equalize", 8), Operation(0.1, "invert", 3)),
    (Operation(0.7, "translate_y", 9), Operation(0.9, "autocontrast", 1)),
)

# Strength at each of the ten levels; operations that have none ignore it.
MAGNITUDES: dict[str, np.ndarray] = {
    "shear_y": np.linspace(0, 0.3, 10),  # slope
    "translate_x": np.linspace(0, 150 / 331, 10),  # fraction of the width
    "translate_y": np.linspace(0, 150 / 331, 10),  # fraction of the height
    "rotate": np.linspace(0, 30, 10),  # degrees
    "color": np.linspace(0, 0.9, 10),  # this and the next three: away from a factor of 1
    "contrast": np.linspace(0, 0.9, 10),
    "sharpness": np.linspace(0, 0.9, 10),
    "brightness": np.linspace(0, 0.9, 10),
    "posterize": np.round(np.linspace(8, 4, 10)),  # bits kept
    "solarize": np.linspace(256, 0, 10),  # threshold
    "autocontrast": np.zeros(10),
    "equalize": np.zeros(10),
    "invert": np.zeros(10),
}

ENHANCEMENTS = ("color", "contrast", "sharpness", "brightness")  # a factor 1 - magnitude or 1 + magnitude
SIGNED = (*ENHANCEMENTS, *warps.GEOMETRIC)  # these draw a sign
COLOUR = ("identity", "invert", "solarize", "posterize", "autocontrast", "equalize", *ENHANCEMENTS)

SKIPPED, MINUS, PLUS = 0, 1, 2  # outcomes: an operation is not applied, or applied with that sign


def autoaugment(key: Array, images: Array) -> Array:
    """One sub-policy for each image: each of its two operations is applied or not, with a random sign.

    images: uint8 [B, H, W, 3] -> the same.
    """
    return apply_policy(images, *draw(key, images.shape[0]))


def draw(key: Array, batch: int) -> tuple[Array, Array]:
    """Indices into POLICY, int [B], and the outcomes of both operations, [B, 2] of SKIPPED, MINUS, PLUS."""
    uniform = jax.random.uniform(key, (batch, 5))  # one draw: threefry is slow to compile
    sub_policy = jnp.floor(len(POLICY) * uniform[:, 0]).astype(jnp.int32)
    probability = jnp.asarray([[op.probability for op in pair] for pair in POLICY], jnp.float32)[sub_policy]
    used, plus = uniform[:, 1:3] < probability, uniform[:, 3:5] < 0.5
    return sub_policy, jnp.where(used, jnp.where(plus, PLUS, MINUS), SKIPPED)


def apply_policy(images: Array, sub_policy: Array, outcome: Array) -> Array:
    """Applies what `draw` returned. images: uint8 [B, H, W, 3]; sub_policy: [B]; outcome: [B, 2]."""
    planes = jnp.moveaxis(images, -1, 1)
    for slot in range(2):
        # Without the barrier XLA's CPU compiler would fuse both operations and repeat the first for every pixel that the
        # second reads.
        planes = _apply_slot(jax.lax.optimization_barrier(planes), slot, sub_policy, outcome[:, slot])
    return jnp.moveaxis(planes, 1, -1)


def _apply_slot(planes: Array, slot: int, sub_policy: Array, outcome: Array) -> Array:
    """The first or the second operation of each image's sub-policy. planes: uint8 [B, 3, H, W]; outcome: [B]."""
    table, drawable_warps = _operation_table(slot)
    operation, strength, warp = (part[sub_policy, outcome] for part in map(jnp.asarray, table))
    maps = warps.source_maps(drawable_warps, *planes.shape[2:])
    coloured = apply_colour(planes, operation, strength)
    return jnp.where((warp > 0)[:, None, None, None], warps.warp(planes, maps, warp), coloured)


def apply_colour(images: Array, operation: Array, strength: Array) -> Array:
    """One colour operation for each image. images: uint8 [B, 3, H, W]; operation: int [B], of COLOUR.

    strength: float [B], a factor for the enhancements, a threshold to solarize, bits to posterize.
    """
    is_op = {name: (operation == index)[:, None, None, None] for index, name in enumerate(COLOUR)}
    strength = strength[:, None, None, None]

    # Operations on single levels are worked out for the 256 levels, not for each pixel.
    levels = jnp.arange(colour.LEVELS, dtype=jnp.uint8)[None, None, None, :]
    levels = jnp.broadcast_to(levels, (*images.shape[:2], 1, colour.LEVELS))
    # The barriers keep the 256 levels in one axis: histogram and look_up have 16 by 16, which a TPU would pad to 128.
    counts = jax.lax.optimization_barrier(colour.histogram(images))
    black = jnp.uint8(0)
    result = colour.blend(jnp.where(is_op["contrast"], colour.mean_luminance(images), black), levels, strength)
    result = jnp.where(is_op["posterize"], colour.posterize(levels, strength), result)
    threshold = jnp.where(is_op["invert"], 0, strength)
    result = jnp.where(is_op["solarize"] | is_op["invert"], colour.solarize(levels, threshold), result)
    result = jnp.where(is_op["autocontrast"], colour.autocontrast(levels, counts), result)
    result = jnp.where(is_op["equalize"], colour.equalized(counts).reshape(levels.shape), result)
    result = jnp.where(is_op["identity"], levels, result)
    result = jax.lax.optimization_barrier(result)
    by_level = colour.look_up(result.reshape(*images.shape[:2], colour.LEVELS), images)

    if target().platform == "cpu":
        # The branch saves work and keeps XLA's CPU compiler from fusing the filter with what follows, which would
        # make the whole five times slower.
        smoothed = jax.lax.cond(jnp.any(is_op["sharpness"]), colour.smooth, lambda same: same, images)
    else:
        smoothed = colour.smooth(images)
    degenerate = jnp.where(is_op["sharpness"], smoothed, colour.luminance(images))
    blended = colour.blend(degenerate, images, strength)
    return jnp.where(is_op["color"] | is_op["sharpness"], blended, by_level)


class _OperationTable(NamedTuple):
    """What to do, for each sub-policy and outcome. Each [25, 3]."""

    colour: np.ndarray  # int32, index into COLOUR
    strength: np.ndarray  # float32, of the colour operation
    warp: np.ndarray  # int32, index into the drawable warps


def _operation_table(slot: int) -> tuple[_OperationTable, list[warps.Warp]]:
    """The policy's first or second operations with their strengths, and the distinct warps in them after no warp."""
    shape = (len(POLICY), 3)
    table = _OperationTable(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.int32))
    drawable: dict[warps.Warp, int] = {("identity", 0.0): 0}
    for index in itertools.product(range(len(POLICY)), (MINUS, PLUS)):
        sub_policy, outcome = index
        operation = POLICY[sub_policy][slot]
        strength = signed_strength(operation, outcome)
        if operation.name in warps.GEOMETRIC:
            table.warp[index] = drawable.setdefault((operation.name, strength), len(drawable))
        else:
            table.colour[index] = COLOUR.index(operation.name)
            table.strength[index] = strength
    return table, list(drawable)


def signed_strength(operation: Operation, outcome: int) -> float:
    """The operation's strength for the outcome MINUS or PLUS."""
    magnitude = float(MAGNITUDES[operation.name][operation.level])
    if operation.name in SIGNED and outcome == MINUS:
        magnitude = -magnitude
    return 1 + magnitude if operation.name in ENHANCEMENTS else magnitude
