"""RoSE for anybody's features: dumped arrays in, labels out. No encoder, no run, no training."""

from rose_jax.evolve.features import Evolution, EvolvedFeatures, evolve_features
from rose_jax.evolve.metrics import within_class_covariance

__all__ = ["Evolution", "EvolvedFeatures", "evolve_features", "within_class_covariance"]
