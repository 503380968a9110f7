"""Batches by (seed, task, epoch, step), and features of any part of the data.

Sets that fit stay on the device as uint8 and are gathered inside jit; ImageNet-100 streams through grain. Both
hide behind `feeds` and `encode`, and step n of a task is random access in both.
"""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.config import Config, TrainOptions
from rose_jax.data import augment, streaming
from rose_jax.data.order import epoch_order
from rose_jax.data.resident import flatten, gather
from rose_jax.data.scenario import Scenario
from rose_jax.data.sources import ArraySplit, Dataset, RecordSplit
from rose_jax.models.resnet import Encoder
from rose_jax.runtime.sharding import Layout
from rose_jax.train.step import Feed


class Pipeline:
    def __init__(self, config: Config, dataset: Dataset, scenario: Scenario, encoder: Encoder, layout: Layout):
        self.config, self.dataset, self.scenario, self.layout = config, dataset, scenario, layout
        self.splits: dict[str, ArraySplit | RecordSplit] = {"train": dataset.train, "test": dataset.test}
        self.labels = {name: scenario.internal(split.labels) for name, split in self.splits.items()}
        self.image_shape = (dataset.image_size, dataset.image_size, 3)
        self.encoder = encoder
        self._resident: dict[str, dict[str, jax.Array]] = {}
        self._warm: set[str] = set()  # splits whose encoder is compiled
        self._augment: dict[Callable | None, Callable] = {}
        normalise = augment.eval_transform(normalisation=config.data.normalisation)

        def encode(variables, images, index):
            images = images if index is None else gather(images, index)
            return encoder.apply(variables, normalise(layout.constrain(images)))[0]["feature"]

        def features(variables, images):
            """[n, d] of images that are normalised already; n as the devices divide it."""
            return encoder.apply(variables, layout.constrain(images))[0]["feature"]

        self._encode = jax.jit(encode, out_shardings=layout.replicated)
        self.features = jax.jit(features, out_shardings=layout.replicated)

    def with_schedule(self, train: TrainOptions | None) -> "Pipeline":
        """The same data and compiled functions under a schedule and batch size of an objective's own."""
        if train is None:
            return self
        other = copy.copy(self)
        other.config = dataclasses.replace(self.config, train=train)
        return other

    # Training batches.

    def resident(self, name: str) -> dict[str, jax.Array] | None:
        """A split's images and labels on every device, or None if they are streamed."""
        split = self.splits[name]
        if not isinstance(split, ArraySplit):
            return None
        if name not in self._resident:
            arrays = {"images": flatten(split.images), "labels": self.labels[name]}
            self._resident[name] = self.layout.replicate(arrays)
        return self._resident[name]

    def steps_per_epoch(self, task: int) -> int:
        """An epoch's remainder is dropped; a task smaller than one batch is one padded batch."""
        return max(len(self.task_images(task)) // self.config.train.batch_size, 1)

    def task_images(self, task: int) -> np.ndarray:
        return self.scenario.train_indices(self.labels["train"], task)

    def feeds(
        self, task: int, first_step: int, last_step: int, lr: Callable[[int], float]
    ) -> Iterator[tuple[Feed, int]]:
        """Feeds for steps first_step .. last_step - 1, with the number of steps in each; lr of an epoch."""
        if isinstance(self.splits["train"], ArraySplit):
            return self._resident_feeds(task, first_step, last_step, lr)
        return self._streamed_feeds(task, first_step, last_step, lr)

    def _resident_feeds(self, task, first_step, last_step, lr):
        per_call = self.config.train.steps_per_call
        size = self.layout.padded(self.config.train.batch_size)
        images, per_epoch = self.task_images(task), self.steps_per_epoch(task)
        filled = min(len(images), self.config.train.batch_size)
        mask = self.layout.split(np.arange(size) < filled)
        order_epoch, order = -1, np.empty(0, int)
        for start in range(first_step, last_step, per_call):
            steps = range(start, min(start + per_call, last_step))
            index, rates = np.zeros((per_call, size), np.int32), np.zeros(per_call, np.float32)
            for row, step in enumerate(steps):
                epoch, position = divmod(step, per_epoch)
                if epoch != order_epoch:
                    order = images[epoch_order(self.config.seed, task, epoch, len(images))]
                    order_epoch = epoch
                index[row, :filled] = order[position * filled : (position + 1) * filled]
                rates[row] = lr(epoch)
            yield (
                Feed(
                    self.layout.split(index, axis=1),
                    None,
                    None,
                    mask,
                    self.layout.replicate(rates),
                    self.layout.replicate(np.int32(len(steps))),
                ),
                len(steps),
            )

    def _streamed_feeds(self, task, first_step, last_step, lr):
        steps = range(first_step, last_step)
        batches = self._decoded(task, self.config.seed, steps)
        for step, (images, labels, mask) in zip(steps, batches, strict=True):
            rate = np.array([lr(step // self.steps_per_epoch(task))], np.float32)
            lr_and_count = self.layout.replicate((rate, np.int32(1)))
            yield Feed(None, images, labels, mask, *lr_and_count), 1

    def _decoded(self, task, seed, steps):
        """Images, labels and mask of some steps of a streamed set; each process decodes its share of every batch."""
        split, rows = self.splits["train"], self.task_images(task)
        assert isinstance(split, RecordSplit)
        filled = min(len(rows), self.config.train.batch_size)
        size = self.layout.padded(self.config.train.batch_size)
        local = size // jax.process_count()
        # rows lie where they would with one process; the padding is at the end, so the last ones may have none
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
            num_workers=self.config.data.decode_workers,
            part=(first, last),
        )
        for images, labels in batches:
            yield (
                self.layout.split_local(np.resize(images, (local, *images.shape[1:]))),
                self.layout.split_local(np.resize(self.scenario.internal(labels), local)),
                mask,
            )

    def augmented(
        self, task: int, key: jax.Array, epochs: int, transform: Callable | None = None
    ) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
        """Epochs over D_t outside training: images [n, h, w, 3] after `transform`, labels [n] and mask [n].

        On every device, rows in excess masked. Orders and augmentation follow from `key`, so that a second pass
        gives the same images. Resident sets are seen whole; of streamed ones an epoch's remainder is dropped.
        """
        if transform not in self._augment:
            options = self.config.data
            chosen = transform or augment.train_transform(
                options.augment, normalisation=options.normalisation, pad=options.pad
            )

            def whole(key, images, labels, mask):
                """Gathers as well: a process has read its share of a streamed batch only."""
                return chosen(key, images), labels, mask

            self._augment[transform] = jax.jit(whole, out_shardings=self.layout.replicated)
        raw = self._resident_passes if self.resident("train") else self._streamed_passes
        for step, batch in enumerate(raw(task, key, epochs)):
            yield self._augment[transform](jax.random.fold_in(key, step), *batch)

    def _resident_passes(self, task, key, epochs):
        resident, rows = self.resident("train") or {}, self.task_images(task)
        batch = self.config.train.batch_size
        size = self.layout.padded(batch)
        for epoch in range(epochs):
            order = rows[epoch_order(_seed_of(key), task, epoch, len(rows))]
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                padded = np.resize(chosen, size)
                labels, mask = self.labels["train"][padded], np.arange(size) < len(chosen)
                yield gather(resident["images"], padded), *self.layout.replicate((labels, mask))

    def _streamed_passes(self, task, key, epochs):
        return self._decoded(task, _seed_of(key), range(epochs * self.steps_per_epoch(task)))

    # Features under the test transform.

    def encode(
        self, variables, name: str, indices: np.ndarray, pause: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, float]:
        """Features [n, d] of some images of a split, in the order given, and seconds without compilation.

        pause: called before each batch; it may raise.
        """
        size = self.layout.padded(self.config.test.batch_size)
        features: list[np.ndarray] = []
        seconds = 0.0
        for images, index, count in self._encode_batches(name, indices, size):
            pause()
            if name not in self._warm:  # compile outside the clock
                self._encode(variables, images, index).block_until_ready()
                self._warm.add(name)
            start = time.perf_counter()
            batch = self._encode(variables, images, index).block_until_ready()
            seconds += time.perf_counter() - start
            features.append(np.asarray(batch)[:count])
        return np.concatenate(features), seconds

    def _encode_batches(self, name, indices, size):
        resident, split = self.resident(name), self.splits[name]
        if resident is None:
            assert isinstance(split, RecordSplit)
            # each process decodes its share of every batch
            shares = np.resize(
                indices, (-(-len(indices) // size), jax.process_count(), size // jax.process_count())
            )
            batches = streaming.eval_batches(
                split,
                shares[:, jax.process_index()].reshape(-1),
                batch_size=shares.shape[2],
                image_size=self.dataset.image_size,
                num_workers=self.config.data.decode_workers,
            )
            for start, (images, _) in zip(range(0, len(indices), size), batches, strict=True):
                yield self.layout.split_local(images), None, min(size, len(indices) - start)
            return
        for start in range(0, len(indices), size):
            rows = indices[start : start + size]
            padded = np.zeros(size, np.int32)
            padded[: len(rows)] = rows
            yield resident["images"], self.layout.split(jnp.asarray(padded)), len(rows)


def _seed_of(key: jax.Array) -> int:
    """A seed for orders on the host that follows from a key."""
    return int(jax.random.key_data(key)[-1])
