"""DPCR (He et al., ICML 2025): the least-squares map from old to new features on D_t, without training.

    P = (sum z^T z + lam I)^-1 sum z^T z',     mu_c <- mu_c P Pi_c

P is found and applied here. Pi_c, the row space of class c, is known to the classifier that keeps second moments
(classifiers/ridge.py) and applied by its `confine`; other classifiers have none, and there mu_c <- mu_c P.
"""

import jax
import jax.numpy as jnp

from rose_jax.compensation.projector import project_old
from rose_jax.statistics.drift import paired_features
from rose_jax.statistics.moments import least_squares
from rose_jax.types import ClassMemory, Compensation, Parts, StageView


def make(parts: Parts) -> Compensation:
    lam = parts.config.dpcr.lam

    def move(memory: ClassMemory, view: StageView, key: jax.Array) -> tuple[ClassMemory, jax.Array]:
        old, new = (view.snapshots[k].variables for k in (view.stage - 1, view.stage))
        pairs = paired_features(view, key, old, new)
        drift_map = jnp.asarray(least_squares(pairs.old, pairs.new, lam), jnp.float32)
        return project_old(memory, drift_map, view.stage), drift_map

    return Compensation(move)
