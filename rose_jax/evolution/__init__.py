"""RoSE's test-time semantic evolution: pure functions over features and prototypes, no encoder needed."""

from rose_jax.evolution.blocked import blocked
from rose_jax.evolution.core import Counts, Evolver, Metric, QueueMetric, predict, ridge_for
from rose_jax.evolution.direct import direct
from rose_jax.evolution.gd import gd
from rose_jax.evolution.offline_gd import OfflineInfo, offline_gd
from rose_jax.evolution.rose import SOLVERS, rose

__all__ = [
    "SOLVERS",
    "Counts",
    "Evolver",
    "Metric",
    "OfflineInfo",
    "QueueMetric",
    "blocked",
    "direct",
    "gd",
    "offline_gd",
    "predict",
    "ridge_for",
    "rose",
]
