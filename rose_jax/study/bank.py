"""Features of whole splits under every encoder of a trajectory: extracted once, into files that all studies share."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rose_jax.data.sources import ArraySplit
from rose_jax.run.stage import Stage
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime.files import read_arrays, write_arrays


class Features(NamedTuple):
    values: np.ndarray  # [n, d]
    seconds: float  # of the forward passes, when they were made


class Bank:
    """A file is named by split, encoder and a digest of all that its content depends on."""

    def __init__(self, trajectory: Trajectory, folder: Path):
        self.name, self.folder = trajectory.name, folder
        self.pipeline = trajectory.pipeline
        self.snapshots = LightSnapshots(trajectory)
        scenario, labels = self.pipeline.scenario, self.pipeline.labels["test"]
        self._test_rows = np.sort(scenario.stream_indices(labels, scenario.num_tasks - 1, 0))
        self._place = np.full(len(labels), -1)  # [N] where an image's features stand
        self._place[self._test_rows] = np.arange(len(self._test_rows))
        self._loaded: dict[tuple[int, str], Features] = {}
        self._images: dict[str, str] = {}

    def test(self, k: int, stream: np.ndarray) -> Features:
        """f_k of some test images; the whole test set passes f_k once, whatever is asked for."""
        whole = self._get(k, "test", "test", self._test_rows)
        rows = self._place[stream]
        return Features(whole.values[rows], whole.seconds * len(rows) / len(self._test_rows))

    def train(self, k: int, stage: int) -> np.ndarray:
        """f_k(D_t) under the test transform."""
        return self._get(k, f"train{stage:02d}", "train", self.pipeline.task_images(stage)).values

    def view(self, stage: int, stream: np.ndarray) -> "BankStage":
        return BankStage(self, stage, stream)

    def path(self, k: int, part: str, split: str, rows: np.ndarray) -> Path:
        digest = _digest([self.snapshots[k].digest(), self._image_digest(part, split, rows)])
        return self.folder / f"{self.name}_k{k:02d}_{part}_{digest}.npz"

    def _get(self, k: int, part: str, split: str, rows: np.ndarray) -> Features:
        if (k, part) not in self._loaded:
            path = self.path(k, part, split, rows)
            arrays = read_arrays(path)
            if arrays is None:
                features, seconds = self.pipeline.encode(self.snapshots[k].variables, split, rows)
                arrays = {"features": features, "seconds": np.array(seconds)}
                for stale in path.parent.glob(f"{self.name}_k{k:02d}_{part}_*.npz"):
                    stale.unlink(missing_ok=True)
                write_arrays(path, arrays)
            self._loaded[k, part] = Features(arrays["features"], float(arrays["seconds"]))
        return self._loaded[k, part]

    def _image_digest(self, part: str, split: str, rows: np.ndarray) -> str:
        """Of the images themselves, in the order of the rows, and of what is done to them before the encoder."""
        if part not in self._images:
            images, config = self.pipeline.splits[split], self.pipeline.config
            how = json.dumps([asdict(config.model), config.data.normalisation, self.pipeline.dataset.image_size])
            encoded: Iterable[Any]
            if isinstance(images, ArraySplit):
                encoded = [np.ascontiguousarray(images.images[rows])]
            else:
                encoded = (images.encoded(int(row)) for row in rows)
            self._images[part] = _digest([how, rows.astype("<i8")], encoded)
        return self._images[part]


class BankStage(Stage):
    """A stage whose features come from the bank; everything else is the run's own."""

    def __init__(self, bank: Bank, stage: int, stream: np.ndarray):
        super().__init__(bank.pipeline, stage, bank.snapshots, stream)
        self._bank = bank

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._bank.train(k, self.stage), self._pipeline.labels["train"][self._images]

    def _extract(self, k: int) -> tuple[np.ndarray, float]:
        if k not in self._test:
            self._test[k] = self._bank.test(k, self._stream)
        return self._test[k]


class LightSnapshots(Sequence):
    """A trajectory's snapshots without their encoders, which are read again when somebody asks for one.

    A study passes over all stages many times; whole snapshots of all tasks need not fit into memory.
    """

    def __init__(self, trajectory: Trajectory):
        self._trajectory = trajectory
        self._kept: dict[int, LightSnapshot] = {}

    def __len__(self) -> int:
        return len(self._trajectory)

    def __getitem__(self, task):
        if task not in self._kept:
            self._kept[task] = LightSnapshot(self._trajectory, task)
        return self._kept[task]


class LightSnapshot:
    """Has the attributes of types.Snapshot; `variables` and `extra` come from the trajectory."""

    def __init__(self, trajectory: Trajectory, task: int):
        self._trajectory, self._task = trajectory, task
        snapshot = trajectory[task]
        self.head, self.projector, self.memory = snapshot.head, snapshot.projector, snapshot.memory
        self._digest = _digest(map(np.asarray, jax.tree.leaves(snapshot.variables)))

    @property
    def variables(self) -> Any:
        return self._trajectory[self._task].variables

    @property
    def extra(self) -> Any:
        return self._trajectory[self._task].extra

    def digest(self) -> str:
        """Of the encoder's variables."""
        return self._digest


def _digest(*groups: Iterable[Any]) -> str:
    hasher = hashlib.blake2b(digest_size=8)
    for part in itertools.chain(*groups):
        hasher.update(part.encode() if isinstance(part, str) else part)
    return hasher.hexdigest()
