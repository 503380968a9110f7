"""What a task's training and a scored row may see of stage t: D_t, the snapshots, the unlabelled stream."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from rose_jax.data.pipeline import Pipeline
from rose_jax.types import Snapshot


class Stage:
    """Implements types.StageView. Features are extracted once and shared by all rows."""

    def __init__(
        self,
        pipeline: Pipeline,
        stage: int,
        snapshots: Sequence[Snapshot],
        stream: np.ndarray,
        pause: Callable[[], None] = lambda: None,
    ):
        """pause: called between batches of anything that takes long; it may raise."""
        self.stage, self.snapshots, self.encoder = stage, snapshots, pipeline.encoder
        self._pipeline, self._stream, self.pause = pipeline, stream, pause
        self._images = pipeline.task_images(stage)
        self.notes: dict[str, float] = {}
        self._train: dict[int, np.ndarray] = {}
        self._test: dict[int, tuple[np.ndarray, float]] = {}

    def encode_train(self, variables: Any) -> tuple[np.ndarray, np.ndarray]:
        features, _ = self._pipeline.encode(variables, "train", self._images, self.pause)
        return features, self._pipeline.labels["train"][self._images]

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        if k not in self._train:
            self._train[k] = self.encode_train(self.snapshots[k].variables)[0]
        return self._train[k], self._pipeline.labels["train"][self._images]

    def train_batches(
        self, key: jax.Array, epochs: int, transform: Callable | None = None
    ) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
        for batch in self._pipeline.augmented(self.stage, key, epochs, transform):
            self.pause()
            yield batch

    def encode(self, variables: Any, images: jax.Array) -> jax.Array:
        return self._pipeline.features(variables, images)

    def test_features(self, k: int) -> np.ndarray:
        return self._extract(k)[0]

    def test_seconds(self, k: int) -> float:
        """What the forward passes of f_k over the stream took."""
        return self._extract(k)[1]

    def _extract(self, k: int) -> tuple[np.ndarray, float]:
        if k not in self._test:
            self._test[k] = self._pipeline.encode(self.snapshots[k].variables, "test", self._stream, self.pause)
        return self._test[k]
