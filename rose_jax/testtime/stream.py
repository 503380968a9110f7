"""The test stream, call by call. No label comes near it.

Features: one call is a jitted scan over batches whose carry is the method's state. Images: one call is one batch, for
on the CPU a gradient of a convolution is ruinous inside a loop body.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.stages import Wrapped

from rose_jax.evolution.core import padded_calls, predict
from rose_jax.evolution.threads import wait_with_one_blas_thread
from rose_jax.runtime.programs import Programs
from rose_jax.runtime.sharding import Layout
from rose_jax.types import Adaptation, Classifier, PrototypesNow, PyTree, StreamBatch, TraceBatch

Call = tuple[StreamBatch, int]  # and how many of its images are no padding


class StreamResult(NamedTuple):
    state: PyTree
    predictions: np.ndarray  # int32 [n], -1 where an image could not be scored
    seconds: float  # without compilation and, where features are read, without forward passes
    trace: dict[str, np.ndarray]  # [calls] each: what the method shows of every call
    path: np.ndarray  # [1 + calls, C, d]: prototypes before the first call and after each; [0] if nobody asked


def make_stream(
    adaptation: Adaptation, classifier: Classifier, layout: Layout, with_scores: bool = False
) -> Wrapped:
    """(state, batches [k, b, ...]) -> state, labels [k, b]; where images are read, batches are one: [b, ...].

    with_scores: labels and scores [k, b, C] in place of the labels.
    """

    def stream_batch(state: PyTree, batch: StreamBatch) -> tuple[PyTree, Any]:
        state, scores = adaptation.step(state, batch, classifier)
        return state, (predict(scores), scores) if with_scores else predict(scores)

    def stream_batches(state: PyTree, batches: StreamBatch) -> tuple[PyTree, Any]:
        return jax.lax.scan(stream_batch, state, batches)

    return jax.jit(
        stream_batch if "images" in adaptation.reads else stream_batches, out_shardings=layout.replicated
    )


def run_stream(
    stream: Wrapped,
    state: PyTree,
    calls: Iterable[Call],
    *,
    layout: Layout,
    programs: Programs,
    name: str,
    pause: Callable[[], None] = lambda: None,
    trace: TraceBatch | None = None,
    prototypes: PrototypesNow | None = None,
) -> StreamResult:
    """All calls have one shape, so that every stage runs the same executable; it is known to `programs` by name.

    prototypes: of a state, if their path along the stream is wanted.
    """
    state, seconds = layout.replicate(state), 0.0
    predictions, shown = [np.empty(0, np.int32)], []
    path = [jax.device_get(prototypes(state))] if prototypes else []
    for batch, count in calls:
        pause()
        run = programs.compiled(name, stream, state, batch)
        begin = time.perf_counter()
        state, labels = jax.block_until_ready(wait_with_one_blas_thread(run, state, batch))
        seconds += time.perf_counter() - begin
        predictions.append(np.asarray(labels).reshape(-1)[:count])
        if trace is not None:
            shown.append(jax.device_get(trace(state)))
        if prototypes:
            path.append(jax.device_get(prototypes(state)))
    traced = jax.tree.map(lambda *calls: np.stack(calls), *shown) if shown else {}
    return StreamResult(state, np.concatenate(predictions), seconds, traced, np.array(path))


def feature_calls(
    z_old: np.ndarray | None,
    z_new: np.ndarray,
    *,
    layout: Layout,
    batch_size: int,
    batches_per_call: int,
    evolve_every: int = 1,
    position: int = 0,
) -> Iterator[Call]:
    """z_new: [n, d]; z_old: [ceil(n / evolve_every), d], of the images that enter the queue.

    position: of the first of these images in its stream, where this is a later part of one.
    """
    shape, size = (batches_per_call, batch_size), batch_size * batches_per_call
    for start, new, valid in padded_calls(z_new, size):
        row, old = np.arange(start, start + size), None
        row -= -position % evolve_every  # counted from the first that enters
        enters = row % evolve_every == 0
        if z_old is not None:
            old = np.zeros((size, z_old.shape[1]), np.float32)
            old[valid & enters] = z_old[row[valid & enters] // evolve_every]
        folded = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (valid, enters, old, new))
        yield StreamBatch(*layout.replicate(folded)), int(valid.sum())


def image_calls(images: Iterable[tuple[Any, int]], layout: Layout) -> Iterator[Call]:
    """images: uint8 [b, h, w, 3], split over the devices, and how many of them are no padding."""
    for batch, count in images:
        valid, enters = layout.split((np.arange(len(batch)) < count, np.ones(len(batch), bool)))
        yield StreamBatch(valid, enters, images=batch), count
