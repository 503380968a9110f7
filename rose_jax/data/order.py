"""Random orders on the host, each a pure function of the seed and of what it is for."""

import numpy as np

_PURPOSES = {"train": 1, "stream": 2, "study": 3}


def generator(purpose: str, *address: int) -> np.random.Generator:
    """A generator for each (purpose, seed, task, ...), so that no generator's state is ever saved."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([_PURPOSES[purpose], *address])))


def epoch_order(seed: int, task: int, epoch: int, n: int) -> np.ndarray:
    """The order in which epoch `epoch` of task `task` visits its n images."""
    return generator("train", seed, task, epoch).permutation(n)


def stream_order(seed: int, stage: int, n: int) -> np.ndarray:
    """The shuffled test stream of a stage (the paper shuffles its test set)."""
    return generator("stream", seed, stage).permutation(n)
