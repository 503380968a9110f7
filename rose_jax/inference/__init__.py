"""A trained run in use: labels for new images, with prototypes as they are or moved by these images."""

from rose_jax.inference.evolving import EvolvingModel
from rose_jax.inference.model import Model, Prediction, load

__all__ = ["EvolvingModel", "Model", "Prediction", "load"]
