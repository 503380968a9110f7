"""Test-time evolution of the drift map: RoSE's analytical solution and its gradient-descent counterparts.

All see pairs (z_old, z_new) only, and all move the unmoved prototypes p^{t-1} (Alg. 2).
"""

from rose_jax import evolution
from rose_jax.config import Config
from rose_jax.types import ClassMemory, TestTime


def make_rose(config: Config) -> TestTime:
    options = config.evolution
    ridge = None if options.ridge < 0 else options.ridge
    evolver = evolution.rose(
        capacity=options.capacity,
        alpha=options.alpha,
        granularity=options.granularity,
        solver=options.solver,
        ridge=ridge,
    )
    note = lambda dim: evolution.ridge_for(options.capacity, dim, ridge)[1]  # noqa: E731
    return _test_time(evolver)._replace(note=note)


def make_gd(config: Config) -> TestTime:
    """One Adam step per update on the pairs that came in."""
    return _test_time(_gd(config, queue=False))


def make_gd_queue(config: Config) -> TestTime:
    """One Adam step per update on the whole of the queue that rose would have."""
    return _test_time(_gd(config, queue=True))


def _gd(config: Config, queue: bool) -> evolution.Evolver:
    options = config.evolution
    return evolution.gd(
        lr=options.gd_lr,
        granularity=options.granularity,
        init=options.gd_init,
        queue=queue,
        capacity=options.capacity,
        alpha=options.alpha,
    )


def _test_time(evolver: evolution.Evolver) -> TestTime:
    def prepare(memory: ClassMemory, stage, start, params, key):
        moves = (memory.origin >= 0) & (memory.origin < stage)
        return evolver.init(memory.mean, moves, memory.origin >= 0, start, key)

    def step(state, batch, classifier):
        return evolver.step(state, batch.z_old, batch.z_new, batch.valid, batch.enters)

    def carry(state, memory: ClassMemory) -> ClassMemory:
        return memory._replace(mean=evolver.prototypes(state))

    def report(state) -> dict[str, int]:
        return {name: int(count) for name, count in state.counts._asdict().items()}

    return TestTime(True, prepare, step, carry, report)
