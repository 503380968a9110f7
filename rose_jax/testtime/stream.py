"""The test stream: a jitted scan over batches whose carry is the test-time state. No label comes near it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.evolution.threads import wait_with_one_blas_thread
from rose_jax.runtime.sharding import Layout
from rose_jax.types import Classifier, StreamBatch, TestTime


class StreamResult(NamedTuple):
    state: Any
    predictions: np.ndarray  # int32 [n], -1 where an image could not be scored
    seconds: float  # of evolution and classification, compilation left out


def make_stream(test_time: TestTime, classifier: Classifier) -> Callable:
    """(state, batches of shape [k, b, ...]) -> state, predictions [k, b]."""

    def body(state, batch: StreamBatch):
        state, scores = test_time.step(state, batch, classifier)
        # A row of NaN has no best class, and argmax would silently say 0.
        scored = ~jnp.isnan(scores).any(-1)
        return state, jnp.where(scored, jnp.argmax(scores, -1), -1).astype(jnp.int32)

    @jax.jit
    def test_stream(state, batches: StreamBatch):
        return jax.lax.scan(body, state, batches)

    return test_stream


def run_stream(
    stream: Callable,
    state: Any,
    z_old: np.ndarray,
    z_new: np.ndarray,
    *,
    layout: Layout,
    batch_size: int,
    batches_per_call: int,
    evolve_every: int = 1,
    compiled: bool = False,
) -> StreamResult:
    """Feeds n pairs in calls of one fixed shape, so that every stage runs the same executable.

    compiled: the stream has run before, so its first call need not be repeated for the clock's sake.
    """
    n, per_call = len(z_new), batch_size * batches_per_call
    predictions = np.empty(n, np.int32)
    state = layout.replicate(state)
    seconds = 0.0
    for start in range(0, n, per_call):
        batches = layout.replicate(
            _pack(z_old, z_new, start, per_call, (batches_per_call, batch_size), evolve_every)
        )
        if start == 0 and not compiled:
            # compile outside the clock; the state is not donated, so this run leaves no trace
            jax.block_until_ready(wait_with_one_blas_thread(stream, state, batches))
        begin = time.perf_counter()
        state, labels = jax.block_until_ready(wait_with_one_blas_thread(stream, state, batches))
        seconds += time.perf_counter() - begin
        stop = min(start + per_call, n)
        predictions[start:stop] = np.asarray(labels).reshape(-1)[: stop - start]
    return StreamResult(state, predictions, seconds)


def _pack(z_old, z_new, start: int, per_call: int, shape: tuple[int, int], evolve_every: int) -> StreamBatch:
    stop = min(start + per_call, len(z_new))
    position = np.arange(start, start + per_call)

    def pad(z):
        padded = np.zeros((per_call, z.shape[1]), np.float32)
        padded[: stop - start] = z[start:stop]
        return padded.reshape(*shape, z.shape[1])

    valid = position < stop
    enters = position % evolve_every == 0
    return StreamBatch(pad(z_old), pad(z_new), valid.reshape(shape), enters.reshape(shape))
