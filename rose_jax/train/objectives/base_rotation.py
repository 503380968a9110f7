"""RoSE's baseline with TTT's auxiliary head, trained jointly: the trajectory that TTT's rows stand on."""

from rose_jax.train.auxiliary import with_head
from rose_jax.train.objectives.base import make_base
from rose_jax.train.projector import with_projector
from rose_jax.types import Objective, Parts


def make(parts: Parts) -> Objective:
    return with_projector(with_head(make_base(parts, parts.config.loss), parts, "rotation"), parts)
