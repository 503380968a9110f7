"""What the encoder is trained on: one file per objective, one line here."""

from rose_jax.errors import unknown
from rose_jax.train.auxiliary import ROTATION, SIMCLR
from rose_jax.train.objectives import base, base_rotation, base_simclr, efc, fcs, frozen, il2a, lwf, pass_, ssre
from rose_jax.types import Objective, Parts, Plugin

# All that a method with a recipe of its own reads of `train`.
_MACHINE = ("train.momentum", "train.steps_per_call")

# What PASS's first task depends on, which SSRE takes over.
_FIRST_OF_PASS = (
    *("pass_.temperature", "pass_.recipe.batch_size", "pass_.recipe.first"),
    *("pass_.first_optimizer", "pass_.augment", "pass_.pad", "pass_.prototypes"),
)

OBJECTIVES: dict[str, Plugin[Objective]] = {
    "base": Plugin(base.make, ("train", "loss", "projector")),
    "lwf": Plugin(lwf.make, ("train", "loss", "projector", "lwf")),
    "efc": Plugin(efc.make, (*_MACHINE, "projector", "efc")),
    "fcs": Plugin(fcs.make, (*_MACHINE, "projector", "fcs")),
    "frozen": Plugin(frozen.make, (*_MACHINE, "frozen")),
    "ssre": Plugin(ssre.make, (*_MACHINE, "projector", "ssre", *_FIRST_OF_PASS), first_from="pass"),
    "pass": Plugin(pass_.make, (*_MACHINE, "projector", "pass_")),
    "il2a": Plugin(il2a.make, (*_MACHINE, "projector", "il2a")),
    "base_rotation": Plugin(
        base_rotation.make, ("train", "loss", "projector", "rotation"), provides=frozenset({ROTATION})
    ),
    "base_simclr": Plugin(
        base_simclr.make, ("train", "loss", "projector", "simclr"), provides=frozenset({SIMCLR})
    ),
}


def make_objective(name: str, parts: Parts) -> Objective:
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    return OBJECTIVES[name].make(parts)
