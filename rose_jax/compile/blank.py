"""A stage of a run that has no data: features are random, images black, and there are few of either.

What a task's end and a row's beginning leave behind then has the shapes that it has in a run, at little cost.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from rose_jax.run.features import Features
from rose_jax.types import Array, Augment, PyTree, Snapshot

PER_CLASS = 2  # images of each class of the task; a spread needs two


class BlankStage:
    """In place of run.stage.Stage."""

    def __init__(self, features: Features, stage: int, snapshots: Sequence[Snapshot]):
        self.stage, self.snapshots, self.encoder = stage, snapshots, features.parts.encoder
        self.notes: dict[str, Any] = {}
        self._features, self._rng = features, np.random.default_rng(stage)
        self._labels = np.repeat(np.array(features.images.scenario.classes(stage), np.int32), PER_CLASS)

    def pause(self) -> None:
        pass

    def train_batches(
        self, key: jax.Array, epochs: int, transform: Augment | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[Array, Array, Array]]:
        """One batch, however many epochs are wanted."""
        images = np.zeros((len(self._labels), *self._features.parts.image_shape), np.float32)
        yield images, self._labels, np.ones(len(images), bool)

    def encode(self, variables: PyTree, images: Array) -> np.ndarray:
        return self._random(len(images))

    def encode_train(self, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
        return self._random(len(self._labels)), self._labels

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._random(len(self._labels)), self._labels

    def test_features(self, k: int, every: int = 1) -> np.ndarray:
        return self._random(-(-PER_CLASS * len(self._labels) // every))

    def test_seconds(self, k: int, every: int = 1) -> float:
        return 0.0

    def test_images(self, batch_size: int) -> Iterator[tuple[jax.Array, int]]:
        """On the described devices."""
        layout = self._features.images.layout
        shape = (layout.padded(batch_size), *self._features.parts.image_shape)
        yield layout.split(np.zeros(shape, np.uint8)), batch_size

    def _random(self, count: int) -> np.ndarray:
        """Features after a ReLU are not negative."""
        return np.abs(self._rng.standard_normal((count, self.encoder.feature_dim), np.float32))
