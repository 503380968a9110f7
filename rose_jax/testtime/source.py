"""What test-time methods measure on D_t before a stream: a function of the trained network on plain batches."""

from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from rose_jax.testtime.reading import Reader
from rose_jax.types import Key, Parts, PyTree, StageView


class OfBatch(Protocol):
    def __call__(self, variables: PyTree, reader: Reader, images: jax.Array, mask: jax.Array) -> Any:
        """images: [n, h, w, 3], normalised and not augmented; mask: [n]."""


class OnTask(Protocol):
    def __call__(
        self, view: StageView, reader: Reader, key: Key, batch_size: int
    ) -> Iterator[tuple[Any, np.ndarray]]:
        """Batch by batch of D_t in random order: what the function gives, and the mask [n]."""


def on_task(parts: Parts, function: OfBatch) -> OnTask:
    """The function over D_t, compiled once for all stages."""

    @jax.jit
    def compiled(variables: PyTree, arrays: PyTree, images: jax.Array, mask: jax.Array) -> Any:
        return function(variables, Reader(parts.config.testtime.logits, *arrays), images, mask)

    def plain(key: Key, images: jax.Array) -> jax.Array:
        return parts.normalise(images)

    def over(view: StageView, reader: Reader, key: Key, batch_size: int) -> Iterator[tuple[Any, np.ndarray]]:
        variables = view.snapshots[view.stage].variables
        for images, _, mask in view.train_batches(key, 1, plain, batch_size):
            yield compiled(variables, reader[1:4], images, mask), np.asarray(mask, bool)

    return over
