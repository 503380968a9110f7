"""Made-up images of any dataset's shape and number of classes, for smoke runs: deterministic and learnable."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from rose_jax.data import sources

TRAIN_PER_CLASS = 16
TEST_PER_CLASS = 4

_GRID = 4  # a class is a coarse grid of random colours
_NOISE = 24.0  # gray levels


def synthetic_dataset(name: str) -> sources.Dataset:
    """A stand-in for the dataset `name`: as many classes, the same shape, a few images of each class."""
    spec = sources.KNOWN[name]
    return sources.Dataset(
        name=name,
        num_classes=spec.num_classes,
        class_names=tuple(f"synthetic {label}" for label in range(spec.num_classes)),
        image_size=spec.image_size,
        train=_split(spec, 0, TRAIN_PER_CLASS),
        test=_split(spec, 1, TEST_PER_CLASS),
        kind="synthetic",
    )


def outline(name: str) -> sources.Dataset:
    """As large as the dataset `name` is, but black: for programs that are compiled and not run. Takes no memory."""
    spec = sources.KNOWN[name]

    def black(split: int, per_class: int) -> sources.ArraySplit | sources.RecordSplit:
        labels = np.repeat(np.arange(spec.num_classes, dtype=np.int32), per_class)
        if not spec.in_memory:
            return sources.RecordSplit(SyntheticRecords(labels, split, spec.image_size), labels)
        shape = (len(labels), spec.image_size, spec.image_size, 3)
        return sources.ArraySplit(np.broadcast_to(np.uint8(0), shape), labels)

    names = tuple(map(str, range(spec.num_classes)))
    train, test = (black(split, per_class) for split, per_class in enumerate(spec.per_class))
    return sources.Dataset(name, spec.num_classes, names, spec.image_size, train, test, "synthetic")


def synthetic_image(label: int, split: int, index: int, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: the class's colour grid enlarged, plus brightness and noise of its own."""
    grid = np.random.default_rng([label]).integers(32, 224, (_GRID, _GRID, 3), dtype=np.uint8)
    own = np.random.default_rng([label, split, index])
    image = np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BILINEAR), np.float64)
    image = image + own.normal(0, _NOISE) + own.normal(0, _NOISE, (height, width, 1))
    return np.clip(image, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class SyntheticRecords:
    """Encoded images made on demand, wider than high as photographs are."""

    labels: np.ndarray
    split: int
    height: int

    def encoded(self, i: int) -> bytes:
        buffer = io.BytesIO()
        image = synthetic_image(int(self.labels[i]), self.split, i, self.height, self.height * 5 // 4)
        Image.fromarray(image).save(buffer, "JPEG")
        return buffer.getvalue()

    def name(self, i: int) -> str:
        return f"synthetic image {i}"


def _split(spec: sources.Spec, split: int, per_class: int) -> sources.ArraySplit | sources.RecordSplit:
    labels = np.repeat(np.arange(spec.num_classes, dtype=np.int32), per_class)
    if not spec.in_memory:
        return sources.RecordSplit(SyntheticRecords(labels, split, spec.image_size), labels)
    size = spec.image_size
    images = [synthetic_image(int(label), split, i, size, size) for i, label in enumerate(labels)]
    return sources.ArraySplit(np.stack(images), labels)
