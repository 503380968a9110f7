"""Eq. 9 with the projector that was trained along with the encoder: p_c <- p_c P for the old classes."""

import jax
import jax.numpy as jnp

from rose_jax.evolution.core import matmul
from rose_jax.types import Array, ClassMemory, Compensation, Parts, StageView


def make(parts: Parts) -> Compensation:
    def move(memory: ClassMemory, view: StageView, key: jax.Array) -> tuple[ClassMemory, Array]:
        projector = view.snapshots[view.stage].projector
        return project_old(memory, projector, view.stage), projector

    return Compensation(move)


def project_old(memory: ClassMemory, projector: Array, stage: int) -> ClassMemory:
    """Classes that the current task did not bring go through the projector."""
    old = (memory.origin >= 0) & (memory.origin < stage)
    return memory._replace(mean=jnp.where(old[:, None], matmul(memory.mean, projector), memory.mean))
