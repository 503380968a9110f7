"""Batches of a set that does not fit in memory: decoded and cropped by grain's worker processes.

A batch is a pure function of its step, so that any step can be the first and no iterator state is ever saved.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from absl import flags
from PIL import Image

from rose_jax.data import crops, decode
from rose_jax.data.sources import RecordSplit
from rose_jax.errors import UserError

Batch = tuple[np.ndarray, np.ndarray]
OrderFn = Callable[[int, int, int, int], np.ndarray]  # (seed, task, epoch, n) -> permutation of n

_CROP_PURPOSE = 4  # keeps the crops' random numbers apart from those of data/order.py


def train_batches(
    split: RecordSplit,
    indices: np.ndarray,
    *,
    order_fn: OrderFn,
    batch_size: int,
    first_step: int,
    num_steps: int,
    image_size: int = 224,
    seed: int,
    task: int,
    num_workers: int,
    part: tuple[int, int] | None = None,
) -> Iterator[Batch]:
    """Steps first_step .. first_step + num_steps of a task: (uint8 [b, S, S, 3], int32 [b] original labels).

    indices: the task's images in the split, [n]. Step s is batch s % (n // batch_size) of epoch
    s // (n // batch_size); an epoch's remainder is dropped. part: from which to which row of every batch, for a
    process that decodes a share of it; b is its length. Images are randomly resized crops; flips are left to the
    device.
    """
    if len(indices) < batch_size:
        raise UserError(
            f"A task of {len(indices)} images cannot fill a batch of {batch_size}. Lower the batch size."
        )
    part = part or (0, batch_size)
    batch = _TrainBatch(split, np.asarray(indices), order_fn, batch_size, image_size, seed, task, part)
    yield from _run(batch, first_step, first_step + num_steps, num_workers)


def eval_batches(
    split: RecordSplit, indices: np.ndarray, *, batch_size: int, image_size: int = 224, num_workers: int
) -> Iterator[Batch]:
    """(uint8 [batch_size, S, S, 3], bool [batch_size] which rows are images) in the order of indices.

    Images are resized and centrally cropped; the last batch is filled up with black ones.
    """
    batch = _EvalBatch(split, np.asarray(indices), batch_size, image_size)
    yield from _run(batch, 0, -(-len(indices) // batch_size), num_workers)


@dataclass(frozen=True)
class _TrainBatch:
    split: RecordSplit
    indices: np.ndarray
    order_fn: OrderFn
    batch_size: int
    image_size: int
    seed: int
    task: int
    part: tuple[int, int]

    def __call__(self, step: int) -> Batch:
        epoch, batch = divmod(int(step), len(self.indices) // self.batch_size)
        order = _epoch_order(self.order_fn, self.seed, self.task, epoch, len(self.indices))
        start, stop = (batch * self.batch_size + row for row in self.part)
        rows = self.indices[order[start:stop]]
        images = np.empty((len(rows), self.image_size, self.image_size, 3), np.uint8)
        for k, row in enumerate(rows):
            rng = np.random.default_rng([_CROP_PURPOSE, self.seed, self.task, epoch, start + k])
            images[k] = crops.random_resized_crop(_open(self.split, row), self.image_size, rng)
        return images, self.split.labels[rows]


@dataclass(frozen=True)
class _EvalBatch:
    split: RecordSplit
    indices: np.ndarray
    batch_size: int
    image_size: int

    def __call__(self, batch: int) -> Batch:
        rows = self.indices[batch * self.batch_size : (batch + 1) * self.batch_size]
        images = np.zeros((self.batch_size, self.image_size, self.image_size, 3), np.uint8)
        for k, row in enumerate(rows):
            images[k] = crops.resize_and_center_crop(_open(self.split, row), self.image_size)
        return images, np.arange(self.batch_size) < len(rows)


def _run(make_batch: Callable[[int], Batch], first: int, stop: int, num_workers: int) -> Iterator[Batch]:
    import grain  # takes a second, and sets that fit in memory have no use for it

    # A worker makes whole batches: grain's default buffer of 500 would hold 19 GB (256 images of 224 px).
    read_options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    dataset = grain.MapDataset.range(first, stop).map(make_batch).to_iter_dataset(read_options)
    if num_workers:
        if (
            not flags.FLAGS.is_parsed()
        ):  # grain passes them on to its workers; outside an absl app nobody parsed them
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2),
            worker_init_fn=_live_and_die_with_the_parent,
        )
    iterator = iter(dataset)
    try:
        for images, companion in iterator:
            # Workers hand over shared memory that is unmapped when its array dies; a device buffer may alias
            # it for longer than that, so callers get arrays of their own.
            yield np.array(images), np.array(companion)
    finally:
        iterator.close()  # ends the workers when the caller stops early, too


def _live_and_die_with_the_parent(worker: int, workers: int) -> None:
    """A preemption notice may go to the whole process group; batches must go on until the parent has saved.

    A parent that was killed has told nobody: its workers watch whose children they are.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=2)
def _epoch_order(order_fn: OrderFn, seed: int, task: int, epoch: int, n: int) -> np.ndarray:
    return order_fn(seed, task, epoch, n)


def _open(split: RecordSplit, row: int) -> Image.Image:
    row = int(row)
    try:
        return decode.open_rgb(split.encoded(row), f"number {row}")
    except UserError:
        return decode.open_rgb(split.encoded(row), split.name(row))  # once more, for a message with its path
