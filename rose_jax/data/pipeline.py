"""Training batches by (seed, task, epoch, step), from images on the device or decoded on the way.

Sets that fit stay on the device as uint8 and are gathered inside jit; ImageNet-100 streams through grain. Both
hide behind `TrainingBatches.feeds`, and step n of a task is random access in both.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from rose_jax.config import TrainOptions
from rose_jax.data import streaming
from rose_jax.data.dataset import ArraySplit, Dataset, RecordSplit
from rose_jax.data.order import epoch_order
from rose_jax.data.resident import flatten, gather
from rose_jax.data.scenario import Scenario
from rose_jax.runtime.sharding import Layout

Rows = tuple[jax.Array, jax.Array, jax.Array]  # uint8 images [n, h, w, 3], internal labels [n], mask [n]


class Feed(NamedTuple):
    """One call's batches. Resident data: rows to gather. Streamed data: the images themselves, K = 1."""

    rows: jax.Array | None  # int32 [K, B] into the resident images
    images: jax.Array | None  # uint8 [B, h, w, 3]
    labels: jax.Array | None  # int32 [B]
    mask: jax.Array  # bool [B]
    steps: jax.Array  # int32 [], how many of the K to run


class Images:
    """The images of a scenario, and where they lie."""

    def __init__(self, dataset: Dataset, scenario: Scenario, layout: Layout, seed: int, decode_workers: int):
        self.dataset, self.scenario, self.layout, self.seed = dataset, scenario, layout, seed
        self.decode_workers = decode_workers
        self.splits: dict[str, ArraySplit | RecordSplit] = {"train": dataset.train, "test": dataset.test}
        self.labels = {name: scenario.internal(split.labels) for name, split in self.splits.items()}
        self._resident: dict[str, dict[str, jax.Array]] = {}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.dataset.image_size, self.dataset.image_size, 3)

    def resident(self, name: str) -> dict[str, jax.Array] | None:
        """A split's images and labels on every device, or None if they are streamed."""
        split = self.splits[name]
        if not isinstance(split, ArraySplit):
            return None
        if name not in self._resident:
            arrays = {"images": flatten(split.images), "labels": self.labels[name]}
            self._resident[name] = self.layout.replicate(arrays)
        return self._resident[name]

    def of_task(self, task: int) -> np.ndarray:
        """Indices of D_t in the training split."""
        return self.scenario.train_indices(self.labels["train"], task)

    def stream(self, stage: int) -> np.ndarray:
        """Indices of the stage's test stream in the test split, in the order in which it comes."""
        return self.scenario.stream_indices(self.labels["test"], stage, self.seed)

    def passes(self, task: int, seed: int, epochs: int, batch_size: int) -> Iterator[Rows]:
        """Epochs over D_t outside training, on every device, rows in excess masked.

        Resident sets are seen whole; of streamed ones an epoch's remainder is dropped.
        """
        resident = self.resident("train")
        if resident is None:
            yield from self.decoded(task, seed, range(epochs * self.steps_per_epoch(task, batch_size)), batch_size)
            return
        rows, size = self.of_task(task), self.layout.padded(batch_size)
        for epoch in range(epochs):
            order = rows[epoch_order(seed, task, epoch, len(rows))]
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                padded = np.resize(chosen, size)
                labels, mask = self.labels["train"][padded], np.arange(size) < len(chosen)
                yield gather(resident["images"], padded), *self.layout.replicate((labels, mask))

    def steps_per_epoch(self, task: int, batch_size: int) -> int:
        """An epoch's remainder is dropped; a task smaller than one batch is one padded batch."""
        return max(len(self.of_task(task)) // batch_size, 1)

    def decoded(self, task: int, seed: int, steps: range, batch_size: int) -> Iterator[Rows]:
        """Some steps of a streamed set; each process decodes its share of every batch."""
        split, rows = self.splits["train"], self.of_task(task)
        assert isinstance(split, RecordSplit)
        filled, size = min(len(rows), batch_size), self.layout.padded(batch_size)
        local = size // jax.process_count()
        # Rows lie where they would with one process; the padding is at the end, so the last processes may have none.
        first, last = (min((jax.process_index() + k) * local, filled) for k in (0, 1))
        mask = self.layout.split(np.arange(size) < filled)
        batches = streaming.train_batches(
            split,
            rows,
            order_fn=epoch_order,
            batch_size=filled,
            first_step=steps.start,
            num_steps=len(steps),
            image_size=self.dataset.image_size,
            seed=seed,
            task=task,
            num_workers=self.decode_workers,
            part=(first, last),
        )
        for images, labels in batches:
            yield (
                self.layout.split_local(np.resize(images, (local, *images.shape[1:]))),
                self.layout.split_local(np.resize(self.scenario.internal(labels), local)),
                mask,
            )

    def evaluated(
        self, name: str, indices: np.ndarray, batch_size: int
    ) -> Iterator[tuple[jax.Array, jax.Array | None, int]]:
        """Images of a split in the order given: what to gather from, rows to gather, and how many are no padding.

        Of a streamed set the images themselves, split over the devices, and None. A batch holds the same images on any
        number of devices; what the devices do not divide is padded.
        """
        size, resident, split = self.layout.padded(batch_size), self.resident(name), self.splits[name]
        batches = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
        rows = [np.resize(batch, size).astype(np.int32) for batch in batches]
        if resident is not None:
            for batch, padded in zip(batches, rows, strict=True):
                yield resident["images"], self.layout.split(padded), len(batch)
            return
        assert isinstance(split, RecordSplit)
        # Each process decodes its share of every batch.
        local = size // jax.process_count()
        mine = slice(jax.process_index() * local, (jax.process_index() + 1) * local)
        decoded = streaming.eval_batches(
            split,
            np.concatenate([padded[mine] for padded in rows] or [indices]),
            batch_size=local,
            image_size=self.dataset.image_size,
            num_workers=self.decode_workers,
        )
        for batch, (images, _) in zip(batches, decoded, strict=True):
            yield self.layout.split_local(images), None, len(batch)


class TrainingBatches:
    """What one objective trains on, under its own batch size."""

    def __init__(self, images: Images, options: TrainOptions):
        self.images, self.options = images, options

    def steps_per_epoch(self, task: int) -> int:
        return self.images.steps_per_epoch(task, self.options.batch_size)

    def feeds(self, task: int, first_step: int, last_step: int) -> Iterator[tuple[Feed, range]]:
        """Feeds for steps first_step .. last_step - 1, each with the steps that it holds."""
        if self.images.resident("train") is None:
            return self._streamed(task, range(first_step, last_step))
        return self._resident(task, first_step, last_step)

    def _resident(self, task: int, first_step: int, last_step: int) -> Iterator[tuple[Feed, range]]:
        layout, batch_size, per_call = self.images.layout, self.options.batch_size, self.options.steps_per_call
        size = layout.padded(batch_size)
        images, per_epoch = self.images.of_task(task), self.steps_per_epoch(task)
        filled = min(len(images), batch_size)
        mask = layout.split(np.arange(size) < filled)
        order_epoch, order = -1, np.empty(0, int)
        for start in range(first_step, last_step, per_call):
            steps = range(start, min(start + per_call, last_step))
            index = np.zeros((per_call, size), np.int32)
            for row, step in enumerate(steps):
                epoch, position = divmod(step, per_epoch)
                if epoch != order_epoch:
                    order = images[epoch_order(self.images.seed, task, epoch, len(images))]
                    order_epoch = epoch
                index[row, :filled] = order[position * filled : (position + 1) * filled]
            rows, count = layout.split(index, axis=1), layout.replicate(np.int32(len(steps)))
            yield Feed(rows, None, None, mask, count), steps

    def _streamed(self, task: int, steps: range) -> Iterator[tuple[Feed, range]]:
        one = self.images.layout.replicate(np.int32(1))
        batches = self.images.decoded(task, self.images.seed, steps, self.options.batch_size)
        for step, (images, labels, mask) in zip(steps, batches, strict=True):
            yield Feed(None, images, labels, mask, one), range(step, step + 1)
