"""TFDS builders that generate from what users have on disk, written as array_record without TensorFlow."""

from rose_jax.data.builders.base import Contents, ImageBuilder, SplitContents
from rose_jax.data.builders.cifar100 import RoseCifar100
from rose_jax.data.builders.imagenet100 import RoseImagenet100
from rose_jax.data.builders.tiny import RoseTiny

BUILDERS: dict[str, type[ImageBuilder]] = {
    "cifar100": RoseCifar100,
    "tiny": RoseTiny,
    "imagenet100": RoseImagenet100,
}

__all__ = [
    "BUILDERS",
    "Contents",
    "ImageBuilder",
    "RoseCifar100",
    "RoseImagenet100",
    "RoseTiny",
    "SplitContents",
]
