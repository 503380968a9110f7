"""SDC (Yu et al., CVPR 2020): a prototype moves by the drift of current images, those near it first."""

import jax
import numpy as np

from rose_jax.statistics.drift import old_classes, paired_features, replace_means, squared_distances
from rose_jax.types import ClassMemory, Compensation, Parts, StageView


def make(parts: Parts) -> Compensation:
    options = parts.config.sdc

    def move(memory: ClassMemory, view: StageView, key: jax.Array) -> tuple[ClassMemory, None]:
        pairs = paired_features(
            view, key, view.snapshots[view.stage - 1].variables, view.snapshots[view.stage].variables
        )
        classes = old_classes(memory, view.stage)
        prototypes = np.asarray(memory.mean)[classes]
        drift = weighted_drift(pairs.old, pairs.new, prototypes, options.sigma, options.floor)
        return replace_means(memory, classes, prototypes + drift), None  # a translation of each class

    return Compensation(move)


def weighted_drift(
    old: np.ndarray, new: np.ndarray, prototypes: np.ndarray, sigma: float, floor: float
) -> np.ndarray:
    """sum_i w_ci (z'_i - z_i) / sum_i w_ci with w_ci = exp(-|z_i - p_c|^2 / 2 sigma^2) + floor. [k, d], float64

    old, new: [n, d], the same images under both encoders; prototypes: [k, d]. With the floor, a prototype that
    no image is near moves by the mean drift; without it, by that of the nearest images, however far they are.
    """
    old, new, prototypes = (np.asarray(x, np.float64) for x in (old, new, prototypes))
    exponents = -squared_distances(prototypes, old) / (2 * sigma**2)
    if not floor:  # a common factor changes nothing, and keeps the largest weight from underflowing
        exponents -= exponents.max(1, keepdims=True)
    weights = np.exp(exponents) + floor
    return weights @ (new - old) / weights.sum(1, keepdims=True)
