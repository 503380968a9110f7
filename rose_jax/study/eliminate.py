"""RoSE that carries nothing over from earlier test streams: the paper's check that no test data leaks between stages.

Moved prototypes are thrown away after each stage. At stage t every old encoder f_s, s < t, has its own projector, which
maps the prototypes of its classes, as they were after training, directly from f_s to f_t.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax import evolution
from rose_jax.config import Config
from rose_jax.report.tables import Table
from rose_jax.run.scoring import Scorer
from rose_jax.study import tell
from rose_jax.study.bank import BankStage
from rose_jax.study.bench import Bench, Pass
from rose_jax.study.subject import Finding, Subject
from rose_jax.types import ClassMemory, TestTime


def run(subject: Subject) -> Finding:
    bench = subject.bench()
    subject.expect(2)
    stages = {"original": bench.per_stage(bench.follow("rose")), "eliminate": bench.per_stage(follow(bench))}
    labels = {"original": "RoSE (original)", "eliminate": "RoSE (eliminate)"}
    rows = tuple(tell.row(labels[arm], stages[arm], subject.paper("tab:eliminate", arm)) for arm in labels)
    gap = stages["eliminate"][-1] - stages["original"][-1]
    says = (
        f"Throwing the moved prototypes away after each stage ends {tell.points(gap)} the original "
        f"({stages['eliminate'][-1]:.2f} against {stages['original'][-1]:.2f})."
    )
    notes = (f"At the last stage {bench.stages - 1} old encoders each have a projector of their own.",)
    figure = tell.stage_lines(
        *(tell.by_stage("rose", arm, [stages[arm]], variant=variant) for variant, arm in enumerate(labels))
    )
    return Finding(
        says, Table(("", "last", "average", "paper last"), rows, notes), figure, {"per_stage": stages}, {}
    )


def follow(bench: Bench) -> Pass:
    """A pass of this variant of RoSE over the run's own streams."""
    scorer = Scorer("eliminate", bench.row("rose"), bench.config, bench.pipeline.layout, None)
    scorer.moving = eliminating(bench.config, bench.stages - 1)
    scorer.compensation = scorer.compensation._replace(start=starts)
    view = lambda stage, stream: AllOldEncoders(bench.bank, stage, stream)  # noqa: E731
    return bench.go(scorer, bench.streams(), view=view)


class AllOldEncoders(BankStage):
    """A stage whose old features are those of all old encoders side by side: [n, (T-1) d], zeros for later encoders."""

    def _extract(self, k: int) -> tuple[np.ndarray, float]:
        if k == self.stage:
            return super()._extract(k)
        parts = [self._bank.test(s, self._stream) for s in range(self.stage)]
        blank = np.zeros((len(self._stream), parts[0].values.shape[1]), np.float32)
        to_come = [blank] * (len(self.snapshots) - 1 - self.stage)
        return np.concatenate([*(p.values for p in parts), *to_come], axis=1), sum(p.seconds for p in parts)


def starts(view: BankStage) -> np.ndarray:
    """[T-1, d, d] the start W0 of each old encoder s: the product of the trained projectors s -> s+1 -> ... -> t."""
    projectors = [np.asarray(view.snapshots[k].projector, np.float64) for k in range(view.stage + 1)]
    found = np.tile(np.eye(len(projectors[0])), (len(view.snapshots) - 1, 1, 1))
    product = found[0]
    for s in reversed(range(view.stage)):
        found[s] = product = projectors[s + 1] @ product
    return found.astype(np.float32)


class State(NamedTuple):
    evolvers: Any  # the evolution's state of every old encoder, stacked [T-1, ...]
    origin: jax.Array  # int32 [C], the task of each class
    stage: jax.Array  # int32 []


def eliminating(config: Config, encoders: int) -> TestTime:
    """A test-time axis that runs one evolution per old encoder; those of later encoders are skipped.

    The evolutions are mapped over "lanes": lane s belongs to old encoder s.
    """
    options = config.evolution
    evolver = evolution.rose(
        capacity=options.capacity,
        alpha=options.alpha,
        granularity=options.granularity,
        solver=options.solver,
        ridge=None if options.ridge < 0 else options.ridge,
    )
    lanes = jnp.arange(encoders)

    def prepare(memory: ClassMemory, stage, start, params, key, classifier) -> State:
        def one(lane):
            moves = memory.origin == lane
            seen = moves | (memory.origin == stage)
            # The newest old encoder draws the pseudo-features that plain rose draws, so that with two tasks this
            # study gives the same numbers as rose.
            own = jnp.where(lane == stage - 1, key, jax.random.fold_in(key, lane))
            return evolver.init(memory.mean, moves, seen, start[lane], own)

        return State(jax.lax.map(one, lanes), memory.origin, stage)

    def step(state: State, batch, classifier):
        images, dim = batch.z_new.shape
        z_old = batch.z_old.reshape(images, encoders, dim).transpose(1, 0, 2)
        unscored = jnp.full((images, len(state.origin)), -jnp.inf, batch.z_new.dtype)

        def one(args):
            lane, inner, z = args
            go = lambda inner: evolver.step(inner, z, batch.z_new, batch.valid, batch.enters)  # noqa: E731
            return jax.lax.cond(lane < state.stage, go, lambda inner: (inner, unscored), inner)

        evolvers, scores = jax.lax.map(one, (lanes, state.evolvers, z_old))  # [T-1, n, C]
        # The classes of task s are scored by the evolution of encoder s. All evolutions have the new classes' prototypes
        # alike; their scores are taken from the newest old encoder's.
        says = (state.origin[None, :] == lanes[:, None]) | (
            (state.origin == state.stage)[None, :] & (lanes == state.stage - 1)[:, None]
        )
        says &= (lanes < state.stage)[:, None]
        return state._replace(evolvers=evolvers), jnp.where(says[:, None, :], scores, -jnp.inf).max(0)

    def carry(state: State, memory: ClassMemory, classifier):
        return memory, {}  # the prototypes as they were before the stream

    def report(state: State) -> dict[str, int]:
        return {name: int(np.sum(count)) for name, count in state.evolvers.counts._asdict().items()}

    return TestTime(True, prepare, step, carry, report)
