"""What the encoder is trained on: one file per objective, one line here."""

from collections.abc import Callable

from rose_jax.errors import unknown
from rose_jax.train.objectives import base, efc, fcs, lwf
from rose_jax.types import Objective

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "base": base.make,
    "lwf": lwf.make,
    "efc": efc.make,
    "fcs": fcs.make,
}


def make_objective(name: str, **parts) -> Objective:
    """parts: config, encoder, num_classes, image_shape, transform (of training images)."""
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    return OBJECTIVES[name](**parts)
