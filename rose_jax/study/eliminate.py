"""RoSE without anything that earlier test streams could have left behind (the paper's answer to leakage).

Moved prototypes are thrown away after each stage. At stage t every old encoder s < t has a projector of its own that
takes the original prototypes of C_s straight from f_s to f_t.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax import evolution
from rose_jax.config import Config
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bank import BankStage
from rose_jax.study.bench import Bench, Pass
from rose_jax.study.subject import Finding, Subject
from rose_jax.types import Adaptation, Array, Classifier, ClassMemory, End, StageView, Start, StreamBatch


def run(subject: Subject) -> Finding:
    bench = subject.bench()
    subject.expect(2)
    stages = {"original": bench.per_stage(bench.follow("rose")), "eliminate": bench.per_stage(follow(bench))}
    labels = {"original": "RoSE (original)", "eliminate": "RoSE (eliminate)"}
    rows = tuple(
        (
            labels[arm],
            tell.cell(stages[arm][-1]),
            tell.cell(tell.average(stages[arm])),
            tell.cell(subject.paper("tab:eliminate", arm)),
        )
        for arm in labels
    )
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


def follow(bench: Bench, draw: int = 0) -> Pass:
    scorer = bench.new_scorer("eliminate", bench.row("rose"), bench.config)
    scorer.moving = eliminating(bench.config, bench.stages - 1)
    scorer.compensation = scorer.compensation._replace(start=starts)
    view = lambda stage, stream: AllOldEncoders(bench.bank, stage, stream)  # noqa: E731
    return bench.go(scorer, bench.streams(None, draw), draw, view)


class AllOldEncoders(BankStage):
    """The old side of a pair is f_0, f_1, ... side by side: [n, (T-1) d], zeros for encoders still to come."""

    def _extract(self, k: int, every: int) -> tuple[np.ndarray, float]:
        if k == self.stage:
            return super()._extract(k, every)
        parts = [self._bank.test(s, self._stream[::every]) for s in range(self.stage)]
        blank = np.zeros_like(parts[0].values)
        to_come = [blank] * (len(self.snapshots) - 1 - self.stage)
        return np.concatenate([*(p.values for p in parts), *to_come], axis=1), sum(p.seconds for p in parts)


def starts(view: StageView) -> np.ndarray:
    """W0 [T-1, d, d] of s -> t: the product of the trained projectors s -> s+1 -> ... -> t."""
    projectors = [np.asarray(view.snapshots[k].projector, np.float64) for k in range(view.stage + 1)]
    found = np.tile(np.eye(len(projectors[0])), (len(view.snapshots) - 1, 1, 1))
    product = found[0]
    for s in reversed(range(view.stage)):
        found[s] = product = projectors[s + 1] @ product
    return found.astype(np.float32)


class State(NamedTuple):
    evolvers: Any  # of every old encoder, stacked [T-1, ...]
    memory: ClassMemory  # unmoved
    stage: Array  # int32 []


def eliminating(config: Config, encoders: int) -> Adaptation:
    """One evolution per old encoder; encoders still to come are skipped."""
    options = config.evolution
    evolver = evolution.rose(
        capacity=options.capacity,
        alpha=options.alpha,
        granularity=options.granularity,
        solver=options.solver,
        ridge=None if options.ridge < 0 else options.ridge,
    )
    lanes = jnp.arange(encoders)

    def init(start: Start, classifier: Classifier) -> State:
        memory, stage, maps = start.memory, start.stage, jnp.asarray(start.drift_map)

        def one(lane: jax.Array) -> Any:
            moves = memory.origin == lane
            seen = moves | (memory.origin == stage)
            # The youngest draws what plain rose draws: with two tasks both are the same.
            own = jnp.where(lane == stage - 1, start.key, jax.random.fold_in(start.key, lane))
            return evolver.init(memory.mean, moves, seen, maps[lane], own)

        return State(jax.lax.map(one, lanes), memory, stage)

    def step(state: State, batch: StreamBatch, classifier: Classifier) -> tuple[State, jax.Array]:
        assert batch.z_old is not None
        assert batch.z_new is not None
        origin, (images, dim) = state.memory.origin, batch.z_new.shape
        z_old = batch.z_old.reshape(images, encoders, dim).transpose(1, 0, 2)
        unscored = jnp.full((images, len(origin)), -jnp.inf, batch.z_new.dtype)

        def one(args: Any) -> Any:
            lane, inner, z = args
            go = lambda inner: evolver.step(inner, z, batch.z_new, batch.valid, batch.enters)  # noqa: E731
            return jax.lax.cond(lane < state.stage, go, lambda inner: (inner, unscored), inner)

        evolvers, scores = jax.lax.map(one, (lanes, state.evolvers, z_old))  # [T-1, n, C]
        # C_s is scored by encoder s's own evolution; the new classes are the same in all, the youngest has the say.
        says = (origin[None, :] == lanes[:, None]) | (
            (origin == state.stage)[None, :] & (lanes == state.stage - 1)[:, None]
        )
        says &= (lanes < state.stage)[:, None]
        return state._replace(evolvers=evolvers), jnp.where(says[:, None, :], scores, -jnp.inf).max(0)

    def finish(state: State, classifier: Classifier) -> End:
        return End(state.memory, {}, None)  # what the stream has moved is thrown away

    def counts(state: State) -> dict[str, int]:
        return {name: int(np.sum(count)) for name, count in state.evolvers.counts._asdict().items()}

    return Adaptation(frozenset({"z_old", "z_new"}), True, 1, init, step, finish, counts)
