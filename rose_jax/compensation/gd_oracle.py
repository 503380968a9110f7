"""The paper's upper bound of gradient descent: offline, on all pairs of the stage's test stream, to convergence."""

from rose_jax.compensation.projector import project_old
from rose_jax.config import Config
from rose_jax.evolution import offline_gd
from rose_jax.types import Array, ClassMemory, Compensation


def make(config: Config) -> Compensation:
    def move(memory: ClassMemory, view, key) -> tuple[ClassMemory, Array]:
        stage = view.stage
        drift_map, info = offline_gd(
            view.test_features(stage - 1),
            view.test_features(stage),
            view.snapshots[stage].projector,
            lr=config.evolution.gd_lr,
        )
        view.notes |= {"loss_gap": info.gap, "steps": info.steps, "converged": info.converged}
        return project_old(memory, drift_map, stage), drift_map

    return Compensation(move)
