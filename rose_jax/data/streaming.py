"""Batches of a set that does not fit in memory: decoded and cropped by grain's worker processes.

A batch is a pure function of its step, so that any step can be the first and no iterator state is ever saved.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags
from PIL import Image

from rose_jax.data import crops, decode
from rose_jax.data.dataset import RecordSplit
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
    image_size: int,
    seed: int,
    task: int,
    num_workers: int,
    part: tuple[int, int] | None = None,
) -> Iterator[Batch]:
    """Steps first_step .. first_step + num_steps of a task: (uint8 [b, S, S, 3], int32 [b] original labels).

    indices: the task's images in the split, [n]. Step s is batch s % (n // batch_size) of epoch
    s // (n // batch_size); an epoch's remainder is dropped. part: the rows start .. stop - 1 of every batch that
    this process decodes, b of them. Images are randomly resized crops; flips are left to the device.
    """
    if len(indices) < batch_size:
        raise UserError(
            f"A task of {len(indices)} images cannot fill a batch of {batch_size}. Lower the batch size."
        )
    part = part or (0, batch_size)

    def make_batch(step: int) -> Batch:
        epoch, batch = divmod(int(step), len(indices) // batch_size)
        order = _epoch_order(order_fn, seed, task, epoch, len(indices))
        start, stop = (batch * batch_size + row for row in part)
        rows = indices[order[start:stop]]
        images = np.empty((len(rows), image_size, image_size, 3), np.uint8)
        for k, row in enumerate(rows):
            rng = np.random.default_rng([_CROP_PURPOSE, seed, task, epoch, start + k])
            images[k] = crops.random_resized_crop(_open(split, row), image_size, rng)
        return images, split.labels[rows]

    yield from _run(make_batch, first_step, first_step + num_steps, num_workers)


def eval_batches(
    split: RecordSplit, indices: np.ndarray, *, batch_size: int, image_size: int, num_workers: int
) -> Iterator[Batch]:
    """(uint8 [batch_size, S, S, 3], bool [batch_size] which rows are images) in the order of indices.

    Images are resized and centrally cropped; the last batch is filled up with black ones.
    """

    def make_batch(batch: int) -> Batch:
        rows = indices[batch * batch_size : (batch + 1) * batch_size]
        images = np.zeros((batch_size, image_size, image_size, 3), np.uint8)
        for k, row in enumerate(rows):
            images[k] = crops.resize_and_center_crop(_open(split, row), image_size)
        return images, np.arange(batch_size) < len(rows)

    yield from _run(make_batch, 0, -(-len(indices) // batch_size), num_workers)


def _run(make_batch: Callable[[int], Batch], first: int, stop: int, num_workers: int) -> Iterator[Batch]:
    """Each worker process gets a copy of `make_batch` with all that it refers to; grain uses cloudpickle."""
    import grain  # takes a second, and sets that fit in memory have no use for it

    # A worker makes whole batches: grain's default buffer of 500 would hold 19 GB (256 images of 224 px).
    read_options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    dataset = grain.MapDataset.range(first, stop).map(make_batch).to_iter_dataset(read_options)
    if num_workers:
        if not flags.FLAGS.is_parsed():  # grain passes them to its workers; only absl apps parse them
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2),
            worker_init_fn=_init_worker,
        )
    iterator = iter(dataset)
    try:
        for images, companion in iterator:
            # Workers return shared memory that is unmapped with its array, while a device buffer may still
            # refer to it: callers get copies.
            yield np.array(images), np.array(companion)
    finally:
        iterator.close()  # ends the workers, also when the caller stops early


def _init_worker(worker: int, workers: int) -> None:
    """Keep working after SIGTERM and SIGINT, which may go to all processes, until the parent has saved.

    A killed parent cannot end its workers, so each checks every second whether its parent still lives.
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
        return decode.open_rgb(split.encoded(row), split.name(row))  # fails again, now with its path
