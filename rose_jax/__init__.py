"""RoSE in JAX: test-time semantic evolution for class-incremental learning without exemplars."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rose_jax.errors import UserError
    from rose_jax.evolve import Evolution, EvolvedFeatures, evolve_features, within_class_covariance
    from rose_jax.inference import load

_HOMES = {  # name -> where it is; loaded on first use, for data workers and a mistyped command line need no jax
    "Evolution": "rose_jax.evolve",
    "EvolvedFeatures": "rose_jax.evolve",
    "UserError": "rose_jax.errors",
    "evolve_features": "rose_jax.evolve",
    "load": "rose_jax.inference",
    "within_class_covariance": "rose_jax.evolve",
}
__all__ = ["Evolution", "EvolvedFeatures", "UserError", "evolve_features", "load", "within_class_covariance"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("rose-jax")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rose_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
