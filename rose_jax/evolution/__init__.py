"""RoSE's test-time semantic evolution as a library: features and prototypes in, labels out, no encoder needed."""

from rose_jax.evolution.blocked import blocked
from rose_jax.evolution.core import Counts, Evolver, Metric, QueueMetric, predict, ridge_for
from rose_jax.evolution.direct import direct
from rose_jax.evolution.features import Evolution, EvolvedFeatures, evolve_features
from rose_jax.evolution.gd import gd
from rose_jax.evolution.offline_gd import OfflineInfo, offline_gd
from rose_jax.evolution.rose import SOLVERS, rose

__all__ = [
    "SOLVERS",
    "Counts",
    "Evolution",
    "EvolvedFeatures",
    "Evolver",
    "Metric",
    "OfflineInfo",
    "QueueMetric",
    "blocked",
    "direct",
    "evolve_features",
    "gd",
    "offline_gd",
    "predict",
    "ridge_for",
    "rose",
]
