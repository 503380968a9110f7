"""RoSE in JAX: test-time semantic evolution for class-incremental learning without exemplars."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rose_jax.evolution import Evolution, EvolvedFeatures, evolve_features
    from rose_jax.inference import load

__all__ = ["Evolution", "EvolvedFeatures", "evolve_features", "load"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: data workers and a mistyped command line need no jax."""
    if name == "load":
        from rose_jax import inference

        return inference.load
    if name in __all__:
        from rose_jax import evolution

        return getattr(evolution, name)
    raise AttributeError(f"module 'rose_jax' has no attribute {name!r}")
