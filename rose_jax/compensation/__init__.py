"""How old prototypes move at the end of a task: one file per way, one line here."""

from collections.abc import Callable

from rose_jax.compensation import adc, gd_oracle, ldc, none, own, projector, sdc
from rose_jax.config import Config
from rose_jax.types import Compensation

COMPENSATIONS: dict[str, Callable[[Config], Compensation]] = {
    "none": none.make,
    "projector": projector.make,
    "sdc": sdc.make,
    "adc": adc.make,
    "ldc": ldc.make,
    "own": own.make,
    "gd_oracle": gd_oracle.make,
}

# Sections of the config that one reads beside `evolution`.
COMPENSATION_OPTIONS: dict[str, tuple[str, ...]] = {name: (name,) for name in ("sdc", "adc", "ldc")}
