"""What programs are traced for: the devices at hand, or others that they are only compiled for."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Target(NamedTuple):
    platform: str  # cpu, gpu or tpu
    devices: int


def target() -> Target:
    """Code that is written in two ways asks here, while it is traced, which of them is wanted."""
    return _described.get() or Target(jax.default_backend(), jax.device_count())


@contextlib.contextmanager
def tracing_for(platform: str, devices: int = 1) -> Iterator[None]:
    """Around tracing and lowering for devices that are not there."""
    token = _described.set(Target(platform, devices))
    try:
        yield
    finally:
        _described.reset(token)


_described: ContextVar[Target | None] = ContextVar("described", default=None)
