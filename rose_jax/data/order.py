"""Addressed randomness on the host: every order is a pure function of what it is for."""

import numpy as np

_PURPOSES = {"train": 1, "stream": 2, "study": 3}


def generator(purpose: str, *address: int) -> np.random.Generator:
    """A generator of its own for each (purpose, seed, task, ...); nothing to store, nothing to restore."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([_PURPOSES[purpose], *address])))


def epoch_order(seed: int, task: int, epoch: int, n: int) -> np.ndarray:
    """The order in which epoch `epoch` of task `task` visits its n images."""
    return generator("train", seed, task, epoch).permutation(n)


def stream_order(seed: int, stage: int, n: int) -> np.ndarray:
    """The shuffled test stream of a stage (the paper shuffles its test set)."""
    return generator("stream", seed, stage).permutation(n)
