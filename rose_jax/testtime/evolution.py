"""Test-time evolution of the drift map: RoSE's analytical solution and its gradient-descent counterparts.

All see pairs (z_old, z_new) only, and all move the unmoved prototypes p^{t-1} (Alg. 2).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rose_jax import evolution
from rose_jax.config import Config
from rose_jax.statistics.covariance import PairMoments, add_pairs, no_pairs
from rose_jax.types import Array, Classifier, ClassMemory, PyTree, StreamBatch, TestTime


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
    return _test_time(evolver, options.granularity)._replace(note=note)


def make_gd(config: Config) -> TestTime:
    """One Adam step per update on the pairs that came in."""
    return _test_time(_gd(config, queue=False), config.evolution.granularity)


def make_gd_queue(config: Config) -> TestTime:
    """One Adam step per update on the whole of the queue that rose would have."""
    return _test_time(_gd(config, queue=True), config.evolution.granularity)


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


GROWTH = 4  # what a refresh can change shrinks as the stream grows: it waits for 1/4 as many images as have come


class Evolving(NamedTuple):
    """The state of a stream. What the classifier owns moves with the prototypes (see types.Classifier)."""

    evolver: Any
    memory: ClassMemory  # unmoved
    params: PyTree
    images: Array  # int32 [], so far
    since: Array  # int32 [], of these since the classifier's params were last evolved
    pairs: PairMoments | None  # of those that entered; None where the classifier does not read them


def _test_time(evolver: evolution.Evolver, granularity: int) -> TestTime:
    def prepare(memory: ClassMemory, stage, start, params, key, classifier: Classifier) -> Evolving:
        moves, seen = (memory.origin >= 0) & (memory.origin < stage), memory.origin >= 0
        init = partial(evolver.init, memory.mean, moves, seen, start, key)
        pairs = no_pairs(memory.mean.shape[1]) if classifier.reads_pairs else None
        state = evolve_params(Evolving(init(), memory, params, jnp.int32(0), jnp.int32(0), pairs), classifier)
        metric = classifier.metric(state.params) if classifier.metric else None
        return state if metric is None else state._replace(evolver=init(metric))

    def step(state: Evolving, batch: StreamBatch, classifier: Classifier):
        if not classifier.refresh:
            return advance(state, batch, classifier)

        def refresh_and_advance(state: Evolving, part: StreamBatch):
            due = state.since >= jnp.maximum(classifier.refresh, state.images // GROWTH)
            state = jax.lax.cond(due, lambda state: refresh(state, classifier), lambda state: state, state)
            return advance(state, part, classifier)

        rows = batch.z_new.shape[0]
        size = part_size(rows, classifier.refresh, granularity)
        parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)
        state, scores = jax.lax.scan(refresh_and_advance, state, parts)
        return state, scores.reshape(rows, -1)

    def advance(state: Evolving, batch: StreamBatch, classifier: Classifier):
        evolved, scores = evolver.step(state.evolver, batch.z_old, batch.z_new, batch.valid, batch.enters)
        rows = batch.z_new.shape[0]
        state = state._replace(evolver=evolved, images=state.images + rows, since=state.since + rows)
        if state.pairs is not None:
            state = state._replace(
                pairs=add_pairs(state.pairs, batch.z_old, batch.z_new, batch.valid & batch.enters)
            )
        if classifier.metric is None:  # the evolver cannot take these scores; what could not be read stays NaN
            unread = jnp.isnan(scores).any(axis=1)[:, None]
            scores = jnp.where(unread, jnp.nan, classifier.logits(state.params, current(state), batch.z_new))
        return state, scores

    def carry(state: Evolving, memory: ClassMemory, classifier: Classifier) -> tuple[ClassMemory, PyTree]:
        return current(state), evolve_params(state, classifier).params

    def report(state: Evolving) -> dict[str, int]:
        return {name: int(count) for name, count in state.evolver.counts._asdict().items()}

    def current(state: Evolving) -> ClassMemory:
        return state.memory._replace(mean=evolver.prototypes(state.evolver))

    def evolve_params(state: Evolving, classifier: Classifier) -> Evolving:
        params = classifier.evolve(state.params, current(state), evolver.map(state.evolver), state.pairs)
        return state._replace(params=params, since=jnp.int32(0))

    def refresh(state: Evolving, classifier: Classifier) -> Evolving:
        state = evolve_params(state, classifier)
        metric = classifier.metric(state.params) if classifier.metric else None
        return state if metric is None else state._replace(evolver=evolver.with_metric(state.evolver, metric))

    return TestTime(True, prepare, step, carry, report)


def part_size(rows: int, refresh: int, granularity: int) -> int:
    """The least part of a batch that holds `refresh` images and whole updates, all parts being equal."""
    sizes = (size for size in range(granularity, rows, granularity) if rows % size == 0 and size >= refresh)
    return next(sizes, rows)
