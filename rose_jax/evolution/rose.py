"""RoSE's analytical evolution, by either solver."""

from rose_jax.errors import UserError, unknown
from rose_jax.evolution.blocked import blocked
from rose_jax.evolution.core import Evolver
from rose_jax.evolution.direct import direct

SOLVERS = ("blocked", "direct")


def rose(
    capacity: int = 3000,
    alpha: float = 0.2,
    granularity: int = 1,
    solver: str = "blocked",
    ridge: float | None = None,
    block: int | None = None,
) -> Evolver:
    """Eq. 10-13 and Alg. 2: after every `granularity` images, W = argmin ‖Q W − Q'‖² over a queue of pairs.

    capacity, alpha: S and α, the length of the queue and the noise of the pseudo-features that fill it.
    solver: "blocked" (exact for every image, one factorisation per `block` images; None: what suits the
        machine) or "direct" (one dense solve per update; the reference).
    ridge: ρ of λ = ρ·tr(G₀)/d, centred on the trained projector; None chooses by `ridge_for`.
    """
    for name, value in (
        ("capacity", capacity),
        ("granularity", granularity),
        ("block", 1 if block is None else block),
    ):
        if value < 1:
            raise UserError(f"{name} must be at least 1, not {value}.")
    if ridge is not None and ridge < 0:
        raise UserError(f"ridge must not be negative, not {ridge}.")
    if solver == "direct":
        return direct(capacity, alpha, granularity, ridge)
    if solver == "blocked":
        return blocked(capacity, alpha, granularity, ridge, block)
    raise unknown("solver", solver, SOLVERS)
