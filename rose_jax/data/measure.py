"""Mean and deviation of the colour channels of a training split."""

import numpy as np

from rose_jax.data import crops, decode
from rose_jax.data.dataset import ArraySplit, RecordSplit

MOST_BYTES = 2**27  # of a resident set so many are looked at, from images at equal distances
MOST_DECODED = 512  # of a streamed one so many images


def moments(split: ArraySplit | RecordSplit, size: int) -> np.ndarray:
    """float64 [2, 3]: mean and deviation of each channel, pixels scaled to 0..1. Counts of grey levels, so exact."""
    most = MOST_DECODED if isinstance(split, RecordSplit) else max(MOST_BYTES // (3 * size * size), 1)
    counts = np.zeros((3, 256))
    for row in np.unique(np.linspace(0, len(split) - 1, min(most, len(split))).astype(int)):
        if isinstance(split, RecordSplit):
            image = crops.resize_and_center_crop(decode.open_rgb(split.encoded(row), split.name(row)), size)
        else:
            image = split.images[row]
        for channel in range(3):
            counts[channel] += np.bincount(image[..., channel].ravel(), minlength=256)
    share, levels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ levels
    variance = (share * (levels[None, :] - mean[:, None]) ** 2).sum(1)
    return np.stack([mean, np.sqrt(np.maximum(variance, 1 / 255**2))])  # images of one grey level have none
