"""Synthetic features of two successive encoders, for benchmark and accuracy check: no data set, no training.

Non-negative like pooled ReLU features, with a decaying spectrum (the Gram matrix of a queue has a condition
number around 2e4, as on real ones), a drift that no linear map fits exactly, and optional dead channels.
"""

from typing import NamedTuple

import numpy as np


class Stream:
    """Draws (z_old, z_new, labels) of `classes` old classes in dimension `dim`."""

    def __init__(self, classes: int = 100, dim: int = 512, dead: float = 0.0, seed: int = 0):
        rng = np.random.default_rng([seed, 0])
        decay = (1 + np.arange(dim)) ** -0.8
        self.centres = rng.normal(size=(classes, dim)) * decay
        self.decay = decay
        self.mix_old = rng.normal(size=(dim, dim)) / np.sqrt((decay**2).sum())
        self.mix_new = 0.3 * self.mix_old + 0.95 * rng.normal(size=(dim, dim)) / np.sqrt((decay**2).sum())
        self.bias = np.where(rng.permutation(dim) < dead * dim, -1e3, rng.uniform(0.0, 0.6, dim))
        self.seed = seed

    def draw(self, count: int, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`count` images of the stream's part number `part`; equal arguments give equal images. float32"""
        rng = np.random.default_rng([self.seed, 1, part])
        labels = rng.integers(0, len(self.centres), count)
        latent = 0.8 * self.centres[labels] + rng.normal(size=(count, len(self.decay))) * self.decay
        z_old = np.maximum(latent @ self.mix_old + self.bias, 0).astype(np.float32)
        z_new = np.maximum(latent @ self.mix_new + self.bias, 0).astype(np.float32)
        return z_old, z_new, labels


class Stage(NamedTuple):
    """What a test stage starts from. float32"""

    prototypes: np.ndarray  # [C, d] class means under the old encoder
    projector: np.ndarray  # [d, d] fitted on half of the classes, so that it is off for the others


def stage_of(stream: Stream, images: int = 6000) -> Stage:
    z_old, z_new, labels = stream.draw(images, part=2**30)
    classes, dim = stream.centres.shape
    prototypes = np.stack([z_old[labels == c].mean(axis=0) for c in range(classes)])
    seen = labels < classes // 2
    gram = z_old[seen].T.astype(np.float64) @ z_old[seen]
    ridge = 1e-3 * np.trace(gram) / dim * np.eye(dim)
    projector = np.linalg.solve(gram + ridge, z_old[seen].T.astype(np.float64) @ z_new[seen] + ridge)
    return Stage(prototypes.astype(np.float32), projector.astype(np.float32))
