"""What a task's training and a scored row may see of stage t: D_t, the snapshots, the unlabelled stream."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from rose_jax.run.features import Features
from rose_jax.types import Array, Augment, PyTree, Snapshot


class Stage:
    """Implements types.StageView. Features are extracted once and shared by all rows."""

    def __init__(
        self,
        features: Features,
        stage: int,
        snapshots: Sequence[Snapshot],
        stream: np.ndarray,
        batch_size: int,
        pause: Callable[[], None] = lambda: None,
    ):
        """batch_size: of `train_batches`. pause: called between batches of anything that takes long; it may raise."""
        self.stage, self.snapshots, self.encoder = stage, snapshots, features.parts.encoder
        self._features, self._stream, self._batch_size, self._pause = features, stream, batch_size, pause
        self._images = features.images.of_task(stage)
        self.notes: dict[str, float] = {}
        self._train: dict[int, np.ndarray] = {}
        self._test: dict[tuple[int, int], tuple[np.ndarray, float]] = {}
        self.passes: Counter[int] = Counter()  # test images that f_k has seen, by k

    def pause(self) -> None:
        self._pause()

    @property
    def _train_labels(self) -> np.ndarray:
        return self._features.images.labels["train"][self._images]

    def encode_train(self, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
        return self._features.encode(variables, "train", self._images, self.pause)[0], self._train_labels

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        if k not in self._train:
            self._train[k] = self.encode_train(self.snapshots[k].variables)[0]
        return self._train[k], self._train_labels

    def train_batches(
        self,
        key: jax.Array,
        epochs: int,
        transform: Augment | None = None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[Array, Array, Array]]:
        size = batch_size or self._batch_size
        for batch in self._features.augmented(self.stage, key, epochs, size, transform):
            self.pause()
            yield batch

    def encode(self, variables: PyTree, images: Array) -> jax.Array:
        return self._features.of_images(variables, images)

    def test_features(self, k: int, every: int = 1) -> np.ndarray:
        """f_k of every `every`-th image of the stream; the others do not pass f_k."""
        return self._extract(k, every)[0]

    def test_seconds(self, k: int, every: int = 1) -> float:
        """What these forward passes took."""
        return self._extract(k, every)[1]

    def test_images(self, batch_size: int) -> Iterator[tuple[jax.Array, int]]:
        """The stream's images, uint8, split over the devices, and how many of a batch are no padding."""
        return self._features.raw("test", self._stream, batch_size)

    def _extract(self, k: int, every: int) -> tuple[np.ndarray, float]:
        if (k, every) not in self._test:
            if (k, 1) in self._test:  # another row needed all of them
                features, seconds = self._test[k, 1]
                some = features[::every]
                found = some, seconds * len(some) / max(len(features), 1)
            else:
                variables = self.snapshots[k].variables
                self.passes[k] += len(self._stream[::every])
                found = self._features.encode(variables, "test", self._stream[::every], self.pause)
            self._test[k, every] = found
        return self._test[k, every]
