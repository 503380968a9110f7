"""A dataset as the rest of the code sees it, wherever it came from. Labels are its own ids; tasks are scenario.py's."""

import hashlib
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rose_jax.errors import UserError


@dataclass(frozen=True)
class ArraySplit:
    images: np.ndarray  # uint8 [n, H, W, 3], memory-mapped or in memory
    labels: np.ndarray  # int32 [n], original ids 0..C-1

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RecordSplit:
    source: "EncodedImages"
    labels: np.ndarray  # int32 [n], original ids 0..C-1

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, i: int) -> bytes:
        """The PNG or JPEG file of image i."""
        return self.source.encoded(i)

    def name(self, i: int) -> str:
        """Where image i came from, for messages."""
        return self.source.name(i)


class EncodedImages(Protocol):
    """Random access to image files. Must pickle cheaply, because every worker process gets a copy."""

    def encoded(self, i: int) -> bytes: ...
    def name(self, i: int) -> str: ...


@dataclass(frozen=True)
class Dataset:
    name: str
    num_classes: int
    class_names: tuple[str, ...]
    image_size: int
    train: ArraySplit | RecordSplit
    test: ArraySplit | RecordSplit
    kind: str = "complete"  # | partial | synthetic | own: none of the sets that are built in
    digest: str = ""  # of an own set's images
    moments: np.ndarray | None = None  # [2, 3] mean and deviation of the channels, if they were measured

    def pooled(self, side: int) -> "Dataset":
        """Images of 1/side the size: averages of whole pixels, rounded; encoded ones are decoded to that size."""
        if side == 1:
            return self
        if self.image_size % side:
            raise UserError(
                f"config.data.pool {side} does not divide the images' {self.image_size} pixels a side."
            )
        size = self.image_size // side

        def small(split: ArraySplit | RecordSplit) -> ArraySplit | RecordSplit:
            if isinstance(split, RecordSplit):
                return split
            return ArraySplit(pooled(np.asarray(split.images), side), split.labels)

        return replace(self, image_size=size, train=small(self.train), test=small(self.test), moments=None)

    @property
    def streamed(self) -> bool:
        """Whether images are decoded on the way, from pictures of any size."""
        return isinstance(self.train, RecordSplit)

    @property
    def identity(self) -> str:
        """A text that other data does not have; a run is only continued on the data it began with."""
        labels = np.concatenate([self.train.labels, self.test.labels]).astype("<i4")
        digest = hashlib.sha256(labels.tobytes() + "\n".join(self.class_names).encode()).hexdigest()[:12]
        pixels = f" of {self.image_size} pixels a side ({self.digest})" if self.digest else ""
        return f"{self.kind} {self.name}, {len(self.train)} + {len(self.test)} images{pixels}, labels {digest}"


def pooled(images: np.ndarray, side: int) -> np.ndarray:
    """uint8 [n, H, W, 3]: averages of side x side pixels, rounded."""
    n, height, width, channels = images.shape
    parts = images.reshape(n, height // side, side, width // side, side, channels)
    return ((parts.sum((2, 4), np.uint32) + side**2 // 2) // side**2).astype(np.uint8)
