"""How large checkpoints are going to be, known before anything is trained."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from rose_jax.data.pipeline import Pipeline
from rose_jax.train.loop import make_task
from rose_jax.types import Objective, PyTree


class CheckpointBytes(NamedTuple):
    snapshot: int  # what a task leaves behind, the objective's own part included
    states: tuple[int, ...]  # of each task's training: the first may have other parts than the rest


def checkpoint_bytes(objective: Objective, begin: Callable, pipeline: Pipeline) -> CheckpointBytes:
    """Before compression. No training: states are only shapes, and the snapshot is one of zeros.

    What a snapshot holds is known to `finish` alone, which works on the host and cannot be traced.
    """
    tasks = [make_task(pipeline, index) for index in range(pipeline.scenario.num_tasks)]
    first = jax.eval_shape(begin, None, tasks[0])
    trainable, kept = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), (first.trainable, first.batch_stats))
    snapshot = objective.finish(
        trainable, kept, None, _OneBlackImage(pipeline), jax.tree.map(np.asarray, tasks[0])
    )
    later = jax.eval_shape(begin, snapshot, tasks[1]) if len(tasks) > 1 else first
    return CheckpointBytes(_size(snapshot), (_size(first), *[_size(later)] * (len(tasks) - 1)))


class _OneBlackImage:
    """All of D_t, as `finish` sees it (types.StageView)."""

    stage = 0

    def __init__(self, pipeline: Pipeline):
        self.encoder, self._image_shape = pipeline.encoder, pipeline.image_shape

    def train_batches(self, key: Any, epochs: int, transform: Callable | None = None) -> Iterator[tuple]:
        yield np.zeros((1, *self._image_shape), np.float32), np.zeros(1, np.int32), np.ones(1, bool)

    def encode(self, variables: PyTree, images: Any) -> np.ndarray:
        return np.zeros((len(images), self.encoder.feature_dim), np.float32)

    def encode_train(self, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
        return self.encode(variables, np.zeros(1)), np.zeros(1, np.int32)


def _size(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
