"""How old prototypes move at the end of a task: one file per way, one line here."""

from rose_jax.compensation import adc, dpcr, gd_oracle, ldc, none, own, projector, sdc
from rose_jax.types import Compensation, Plugin

COMPENSATIONS: dict[str, Plugin[Compensation]] = {
    "none": Plugin(none.make),
    "projector": Plugin(projector.make),
    "sdc": Plugin(sdc.make, ("sdc",)),
    "adc": Plugin(adc.make, ("adc",)),
    "ldc": Plugin(ldc.make, ("ldc",)),
    "dpcr": Plugin(dpcr.make, ("dpcr.lam",)),
    "own": Plugin(own.make),
    "gd_oracle": Plugin(gd_oracle.make, ("evolution.gd_lr",)),
}
