"""Test-time evolution of the drift map: RoSE's analytical solution and its gradient-descent counterparts.

All see pairs (z_old, z_new) only, and all move the unmoved prototypes p^{t-1} (Alg. 2).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rose_jax import evolution
from rose_jax.config import EvolutionOptions
from rose_jax.statistics.covariance import PairMoments, add_pairs, no_pairs
from rose_jax.types import (
    Adaptation,
    Array,
    Classifier,
    ClassMemory,
    End,
    Motion,
    Parts,
    PyTree,
    Start,
    StreamBatch,
)


def make_rose(parts: Parts) -> Adaptation:
    options = parts.config.evolution

    def note(dim: int) -> str | None:
        return evolution.ridge_for(options.capacity, dim, _ridge(options))[1]

    return adaptation_of(make_evolver(options), options.granularity)._replace(note=note, offers=QUEUE)


def make_evolver(options: EvolutionOptions) -> evolution.Evolver:
    return evolution.rose(
        capacity=options.capacity,
        alpha=options.alpha,
        granularity=options.granularity,
        solver=options.solver,
        ridge=_ridge(options),
    )


def _ridge(options: EvolutionOptions) -> float | None:
    return None if options.ridge < 0 else options.ridge


def make_gd(parts: Parts) -> Adaptation:
    """One Adam step per update on the pairs that came in."""
    return adaptation_of(_gd(parts, queue=False), parts.config.evolution.granularity)


def make_gd_queue(parts: Parts) -> Adaptation:
    """One Adam step per update on the whole of the queue that rose would have."""
    return adaptation_of(_gd(parts, queue=True), parts.config.evolution.granularity)._replace(offers=QUEUE)


def _gd(parts: Parts, queue: bool) -> evolution.Evolver:
    options = parts.config.evolution
    return evolution.gd(
        lr=options.gd_lr,
        granularity=options.granularity,
        init=options.gd_init,
        queue=queue,
        capacity=options.capacity,
        alpha=options.alpha,
    )


QUEUE = frozenset({"queue"})
GROWTH = 4  # what a refresh can change shrinks as the stream grows: it waits for 1/4 as many images as have come


class Evolving(NamedTuple):
    """The state of a stream. What the classifier owns moves with the prototypes (see types.Motion)."""

    evolver: Any
    memory: ClassMemory  # unmoved
    params: PyTree
    images: Array  # int32 [], so far
    since: Array  # int32 [], of these since the classifier's params last followed the drift
    pairs: PairMoments | None  # of those that entered; None where the classifier does not read them


def adaptation_of(evolver: evolution.Evolver, granularity: int) -> Adaptation:
    """The test-time method that lets an evolver move the prototypes, and the classifier's params along with them."""

    def init(start: Start, classifier: Classifier) -> Evolving:
        memory, motion = start.memory, classifier.motion
        mean, origin, drift_map = map(jnp.asarray, (*memory, start.drift_map))
        moves, seen = (origin >= 0) & (origin < start.stage), origin >= 0
        begin = partial(evolver.init, mean, moves, seen, drift_map, start.key)
        pairs = no_pairs(memory.mean.shape[1]) if motion and motion.reads_pairs else None
        state = Evolving(begin(), memory, start.params, jnp.int32(0), jnp.int32(0), pairs)
        if motion is None:
            return state
        state = follow(state, motion)
        return state._replace(evolver=begin(motion.metric(state.params))) if motion.metric else state

    def step(state: Evolving, batch: StreamBatch, classifier: Classifier) -> tuple[Evolving, jax.Array]:
        motion = classifier.motion
        if motion is None or not motion.refresh:
            return advance(state, batch, classifier)

        def refresh_and_advance(state: Evolving, part: StreamBatch) -> tuple[Evolving, jax.Array]:
            due = state.since >= jnp.maximum(motion.refresh, state.images // GROWTH)
            state = jax.lax.cond(due, lambda state: refresh(state, motion), lambda state: state, state)
            return advance(state, part, classifier)

        rows = batch.valid.shape[0]
        size = part_size(rows, motion.refresh, granularity)
        parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)
        state, scores = jax.lax.scan(refresh_and_advance, state, parts)
        return state, scores.reshape(rows, -1)

    def advance(state: Evolving, batch: StreamBatch, classifier: Classifier) -> tuple[Evolving, jax.Array]:
        assert batch.z_old is not None
        assert batch.z_new is not None
        evolved, scores = evolver.step(state.evolver, batch.z_old, batch.z_new, batch.valid, batch.enters)
        rows = batch.valid.shape[0]
        state = state._replace(evolver=evolved, images=state.images + rows, since=state.since + rows)
        if state.pairs is not None:
            state = state._replace(
                pairs=add_pairs(state.pairs, batch.z_old, batch.z_new, batch.valid & batch.enters)
            )
        if not classifier.scored_by_evolution:  # what could not be read stays NaN
            unread = jnp.isnan(scores).any(axis=1)[:, None]
            scores = jnp.where(unread, jnp.nan, classifier.logits(state.params, current(state), batch.z_new))
        return state, scores

    def finish(state: Evolving, classifier: Classifier) -> End:
        motion = classifier.motion
        params = follow(state, motion).params if motion else state.params
        if motion and motion.learn:
            params = motion.learn(params, evolver.metric(state.evolver))
        return End(current(state), params, None)

    def counts(state: Evolving) -> dict[str, int]:
        return {name: int(count) for name, count in state.evolver.counts._asdict().items()}

    def current(state: Evolving) -> ClassMemory:
        return state.memory._replace(mean=evolver.prototypes(state.evolver))

    def follow(state: Evolving, motion: Motion) -> Evolving:
        params = motion.follow(state.params, current(state), evolver.map(state.evolver), state.pairs)
        return state._replace(params=params, since=jnp.int32(0))

    def refresh(state: Evolving, motion: Motion) -> Evolving:
        state = follow(state, motion)
        if motion.metric is None:
            return state
        return state._replace(evolver=evolver.with_metric(state.evolver, motion.metric(state.params)))

    reads = frozenset({"z_old", "z_new"})
    # The first stage has no old encoder, so that an evolution starts at the second.
    return Adaptation(
        reads, True, 1, init, step, finish, counts, prototypes=lambda state: evolver.prototypes(state.evolver)
    )


def part_size(rows: int, refresh: int, granularity: int) -> int:
    """The least part of a batch that holds `refresh` images and whole updates, all parts being equal."""
    sizes = (size for size in range(granularity, rows, granularity) if rows % size == 0 and size >= refresh)
    return next(sizes, rows)
