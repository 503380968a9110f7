"""The paper's upper bound of gradient descent: offline, on all pairs of the stage's test stream, to convergence."""

import jax

from rose_jax.compensation.projector import project_old
from rose_jax.evolution import offline_gd
from rose_jax.types import Array, ClassMemory, Compensation, Parts, StageView


def make(parts: Parts) -> Compensation:
    def move(memory: ClassMemory, view: StageView, key: jax.Array) -> tuple[ClassMemory, Array]:
        stage = view.stage
        drift_map, info = offline_gd(
            view.test_features(stage - 1),
            view.test_features(stage),
            view.snapshots[stage].projector,
            lr=parts.config.evolution.gd_lr,
        )
        view.notes |= {"loss_gap": info.gap, "steps": info.steps, "converged": info.converged}
        return project_old(memory, drift_map, stage), drift_map

    return Compensation(move)
