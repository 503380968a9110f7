"""RoSE that carries nothing over from earlier test streams: the paper's check that no test data leaks between stages.

Moved prototypes are thrown away after each stage. At stage t every old encoder f_s, s < t, has its own projector, which
maps the prototypes of its classes, as they were after training, directly from f_s to f_t.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax import evolution
from rose_jax.methods import METHODS
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bank import BankStage
from rose_jax.study.bench import Bench, Pass
from rose_jax.study.subject import Finding, Subject
from rose_jax.testtime.evolution import make_evolver
from rose_jax.types import Adaptation, Array, Classifier, ClassMemory, End, StageView, Start, StreamBatch


def run(subject: Subject) -> Finding:
    bench = subject.bench()
    subject.expect(2)
    stages = {"original": bench.per_stage(bench.follow("rose")), "eliminate": bench.per_stage(follow(bench))}
    rows = [tell.row(f"RoSE ({arm})", found, subject.paper("tab:eliminate", arm)) for arm, found in stages.items()]
    original, without = (found[-1] for found in stages.values())
    says = (
        f"Throwing the moved prototypes away after each stage ends {tell.points(without - original)} the original "
        f"({without:.2f} against {original:.2f})."
    )
    notes = (f"At the last stage {bench.stages - 1} old encoders each have a projector of their own.",)
    lines = [tell.by_stage("rose", arm, [found], variant=v) for v, (arm, found) in enumerate(stages.items())]
    table = Table(("", "last", "average", "paper last"), tuple(rows), notes)
    return Finding(says, table, tell.stage_lines(*lines), {"per_stage": stages}, {})


def follow(bench: Bench) -> Pass:
    """A pass of this variant of RoSE over the run's own streams."""
    scorer = bench.new_scorer("eliminate", METHODS["rose"], bench.config)
    scorer.moving = eliminating(make_evolver(bench.config.evolution), bench.stages - 1)
    scorer.compensation = scorer.compensation._replace(start=starts)
    view = lambda stage, stream: AllOldEncoders(bench.bank, stage, stream)  # noqa: E731
    return bench.go(scorer, bench.streams(), view=view)


class AllOldEncoders(BankStage):
    """A stage whose old features are those of all old encoders side by side: [n, (T-1) d], zeros for later encoders."""

    def _extract(self, k: int, every: int) -> tuple[np.ndarray, float]:
        if k == self.stage:
            return super()._extract(k, every)
        parts = [self._bank.test(s, self._stream[::every]) for s in range(self.stage)]
        blank = np.zeros_like(parts[0].values)
        to_come = [blank] * (len(self.snapshots) - 1 - self.stage)
        return np.concatenate([*(p.values for p in parts), *to_come], axis=1), sum(p.seconds for p in parts)


def starts(view: StageView) -> np.ndarray:
    """[T-1, d, d] the start W0 of each old encoder s: the product of the trained projectors s -> s+1 -> ... -> t."""
    projectors = [np.asarray(view.snapshots[k].projector, np.float64) for k in range(view.stage + 1)]
    found = np.tile(np.eye(len(projectors[0])), (len(view.snapshots) - 1, 1, 1))
    product = found[0]
    for s in reversed(range(view.stage)):
        found[s] = product = projectors[s + 1] @ product
    return found.astype(np.float32)


class State(NamedTuple):
    evolvers: Any  # the evolution's state of every old encoder, stacked [T-1, ...]
    memory: ClassMemory  # unmoved
    stage: Array  # int32 []


def eliminating(evolver: evolution.Evolver, encoders: int) -> Adaptation:
    """A test-time method that runs one evolution per old encoder; those of later encoders are skipped.

    The evolutions are mapped over "lanes": lane s belongs to old encoder s.
    """
    lanes = jnp.arange(encoders)

    def init(start: Start, classifier: Classifier) -> State:
        memory = ClassMemory(*map(jnp.asarray, start.memory))
        stage, maps = start.stage, jnp.asarray(start.drift_map)

        def one(lane: jax.Array) -> Any:
            moves = memory.origin == lane
            seen = moves | (memory.origin == stage)
            # The newest old encoder draws the pseudo-features that plain rose draws, so that with two tasks this
            # study gives the same numbers as rose.
            own = jnp.where(lane == stage - 1, start.key, jax.random.fold_in(start.key, lane))
            return evolver.init(jnp.asarray(memory.mean), jnp.asarray(moves), jnp.asarray(seen), maps[lane], own)

        return State(jax.lax.map(one, lanes), memory, stage)

    def step(state: State, batch: StreamBatch, classifier: Classifier) -> tuple[State, jax.Array]:
        assert batch.z_old is not None
        assert batch.z_new is not None
        origin, z_new = state.memory.origin, batch.z_new
        images, dim = z_new.shape
        z_old = batch.z_old.reshape(images, encoders, dim).transpose(1, 0, 2)
        unscored = jnp.full((images, len(origin)), -jnp.inf, batch.z_new.dtype)

        def one(args: Any) -> Any:
            lane, inner, z = args
            go = lambda inner: evolver.step(inner, z, z_new, batch.valid, batch.enters)  # noqa: E731
            return jax.lax.cond(lane < state.stage, go, lambda inner: (inner, unscored), inner)

        evolvers, scores = jax.lax.map(one, (lanes, state.evolvers, z_old))  # [T-1, n, C]
        # The classes of task s are scored by the evolution of encoder s. All evolutions have the new classes' prototypes
        # alike; their scores are taken from the newest old encoder's.
        says = (origin[None, :] == lanes[:, None]) | (
            (origin == state.stage)[None, :] & (lanes == state.stage - 1)[:, None]
        )
        says &= (lanes < state.stage)[:, None]
        return state._replace(evolvers=evolvers), jnp.where(says[:, None, :], scores, -jnp.inf).max(0)

    def finish(state: State, classifier: Classifier) -> End:
        return End(state.memory, {}, None)  # the prototypes as they were before the stream

    def counts(state: State) -> dict[str, int]:
        return {name: int(np.sum(count)) for name, count in state.evolvers.counts._asdict().items()}

    return Adaptation(frozenset({"z_old", "z_new"}), True, 1, init, step, finish, counts)
