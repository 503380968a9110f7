"""Features of whole splits under every encoder of a trajectory: extracted once, into files that all studies share."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rose_jax.data.sources import ArraySplit
from rose_jax.run.identity import digest_of, tree_digest
from rose_jax.run.stage import Stage
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime.files import read_arrays, write_arrays
from rose_jax.types import PyTree, Snapshot


class Features(NamedTuple):
    values: np.ndarray  # [n, d]
    seconds: float  # of the forward passes, when they were made


class Bank:
    """A file is named by split, encoder and a digest of all that its content depends on."""

    def __init__(self, trajectory: Trajectory, folder: Path):
        self.trajectory, self.images, self.folder = trajectory, trajectory.images, folder
        self.snapshots: list[Any] = [LightSnapshot(trajectory, task) for task in range(len(trajectory))]
        scenario, labels = self.images.scenario, self.images.labels["test"]
        self._test_rows = np.sort(scenario.stream_indices(labels, scenario.num_tasks - 1, 0))
        self._place = np.full(len(labels), -1)  # [N] where an image's features stand
        self._place[self._test_rows] = np.arange(len(self._test_rows))
        self._loaded: dict[tuple[int, str], Features] = {}
        self._image_digests: dict[str, str] = {}

    def test(self, k: int, stream: np.ndarray) -> Features:
        """f_k of some test images; the whole test set passes f_k once, whatever is asked for."""
        whole = self._get(k, "test", "test", self._test_rows)
        rows = self._place[stream]
        return Features(whole.values[rows], whole.seconds * len(rows) / len(self._test_rows))

    def train(self, k: int, stage: int) -> np.ndarray:
        """f_k(D_t) under the test transform."""
        return self._get(k, f"train{stage:02d}", "train", self.images.of_task(stage)).values

    def view(self, stage: int, stream: np.ndarray) -> "BankStage":
        return BankStage(self, stage, stream)

    def path(self, k: int, part: str, split: str, rows: np.ndarray) -> Path:
        digest = digest_of([self.snapshots[k].digest, self._image_digest(part, split, rows)])
        return self.folder / f"{self.trajectory.name}_k{k:02d}_{part}_{digest}.npz"

    def _get(self, k: int, part: str, split: str, rows: np.ndarray) -> Features:
        if (k, part) not in self._loaded:
            path = self.path(k, part, split, rows)
            arrays = read_arrays(path)
            if arrays is None:
                features, seconds = self.trajectory.features.encode(self.snapshots[k].variables, split, rows)
                arrays = {"features": features, "seconds": np.array(seconds)}
                for stale in path.parent.glob(path.name.rsplit("_", 1)[0] + "_*.npz"):
                    stale.unlink(missing_ok=True)
                write_arrays(path, arrays)
            self._loaded[k, part] = Features(arrays["features"], float(arrays["seconds"]))
        return self._loaded[k, part]

    def _image_digest(self, part: str, split: str, rows: np.ndarray) -> str:
        """Of the images themselves, in the order of the rows, and of what is done to them before the encoder."""
        if part not in self._image_digests:
            images, config = self.images.splits[split], self.trajectory.parts.config
            how = json.dumps([asdict(config.model), config.data.normalisation, self.images.dataset.image_size])
            if isinstance(images, ArraySplit):
                encoded: Iterable[Any] = [np.ascontiguousarray(images.images[rows]).data]
            else:
                encoded = map(images.encoded, rows.tolist())
            self._image_digests[part] = digest_of(itertools.chain([how, rows.astype("<i8").data], encoded))
        return self._image_digests[part]


class BankStage(Stage):
    """A stage whose features come from the bank; everything else is the run's own."""

    def __init__(self, bank: Bank, stage: int, stream: np.ndarray):
        trajectory = bank.trajectory
        super().__init__(trajectory.features, stage, bank.snapshots, stream, trajectory.options.batch_size)
        self._bank = bank

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self._bank.train(k, self.stage), self._train_labels

    def _extract(self, k: int, every: int) -> tuple[np.ndarray, float]:
        if (k, every) not in self._test:
            self._test[k, every] = self._bank.test(k, self._stream[::every])
        return self._test[k, every]


class LightSnapshot:
    """Has the attributes of types.Snapshot. The encoder is read again whenever somebody asks for it: a study passes over
    all stages many times, and whole snapshots of all tasks need not fit into memory."""

    def __init__(self, trajectory: Sequence[Snapshot], task: int):
        self._trajectory, self._task = trajectory, task
        snapshot = trajectory[task]
        self.head, self.projector, self.memory = snapshot.head, snapshot.projector, snapshot.memory
        self.digest = tree_digest(snapshot.variables)

    @property
    def variables(self) -> PyTree:
        return self._trajectory[self._task].variables

    @property
    def extra(self) -> PyTree:
        return self._trajectory[self._task].extra
