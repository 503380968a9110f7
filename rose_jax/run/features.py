"""Features of any part of the data under any encoder."""

import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from rose_jax.data.pipeline import Images
from rose_jax.data.resident import gather
from rose_jax.runtime.memory import must_fit
from rose_jax.runtime.programs import Programs
from rose_jax.types import Array, Augment, Parts, PyTree


class Features:
    def __init__(self, images: Images, parts: Parts):
        self.images, self.parts = images, parts
        self.batch_size = parts.config.test.batch_size
        self.programs = Programs("features", convolves=True)
        self._augment: dict[Augment, Callable] = {}
        layout, encoder = images.layout, parts.encoder

        def encode(variables: PyTree, images: jax.Array, index: jax.Array | None) -> jax.Array:
            chosen = images if index is None else gather(images, index)
            return encoder.apply(variables, parts.normalise(layout.constrain(chosen)))[0]["feature"]

        def features(variables: PyTree, images: Array) -> jax.Array:
            return encoder.apply(variables, layout.constrain(images))[0]["feature"]

        self.encoding = jax.jit(encode, out_shardings=layout.replicated)
        self._gather = jax.jit(gather, out_shardings=layout.batch_sharding())
        self._features = jax.jit(features, out_shardings=layout.replicated)

    def encode(
        self, variables: PyTree, split: str, indices: np.ndarray, pause: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, float]:
        """Features [n, d] of some images of a split, not augmented, in the order given; seconds without compilation.

        pause: called before each batch; it may raise.
        """
        found: list[np.ndarray] = []
        seconds = 0.0
        with must_fit("A batch of images to encode", f"config.test.batch_size (now {self.batch_size})"):
            for images, index, count in self.images.evaluated(split, indices, self.batch_size):
                pause()
                run = self.programs.compiled(f"encode {split}", self.encoding, variables, images, index)
                start = time.perf_counter()
                batch = jax.block_until_ready(run(variables, images, index))
                seconds += time.perf_counter() - start
                found.append(np.asarray(batch)[:count])
        dim = self.parts.encoder.feature_dim
        return np.concatenate(found) if found else np.empty((0, dim), np.float32), seconds

    def of_images(self, variables: PyTree, images: Array) -> jax.Array:
        """[n, d] of images that are normalised already; n as the devices divide it."""
        return self._features(variables, images)

    def augmented(
        self, task: int, key: jax.Array, epochs: int, batch_size: int, transform: Augment | None = None
    ) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
        """Epochs over D_t outside training: images [n, h, w, 3] after `transform`, labels [n] and mask [n].

        Orders and augmentation follow from `key`, so that a second pass gives the same images.
        """
        chosen = transform or self.parts.transform
        if chosen not in self._augment:

            def whole(
                key: jax.Array, images: jax.Array, labels: jax.Array, mask: jax.Array
            ) -> tuple[jax.Array, Array, Array]:
                """Labels and mask as well: a process has read its share of a streamed batch only."""
                return chosen(key, images), labels, mask

            self._augment[chosen] = jax.jit(whole, out_shardings=self.images.layout.replicated)
        seed = int(jax.random.key_data(key)[-1])  # for orders on the host
        for step, batch in enumerate(self.images.passes(task, seed, epochs, batch_size)):
            yield self._augment[chosen](jax.random.fold_in(key, step), *batch)

    def raw(self, split: str, indices: np.ndarray, batch_size: int) -> Iterator[tuple[jax.Array, int]]:
        """uint8 images [n, h, w, 3], split over the devices, and how many of a batch are no padding."""
        for images, index, count in self.images.evaluated(split, indices, batch_size):
            yield (images if index is None else self._gather(images, index)), count
