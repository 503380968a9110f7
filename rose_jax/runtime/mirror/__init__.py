"""A copy of a run in a bucket or on another disk, kept up in the background, for runs that outlive their machine."""

from rose_jax.runtime.mirror.mirror import Mirror
from rose_jax.runtime.mirror.store import check_mirror

__all__ = ["Mirror", "check_mirror"]
