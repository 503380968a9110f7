"""Prepared records on disk: the data folder, and TFDS's array_record files, read without TensorFlow."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rose_jax.data.prepare import cache

DATA_DIR_VARIABLE = "ROSE_JAX_DATA"
DEFAULT_DATA_DIR = "~/rose_jax_data"


def data_folder(data_dir: str | None = None) -> Path:
    return Path(data_dir or os.environ.get(DATA_DIR_VARIABLE) or DEFAULT_DATA_DIR).expanduser()


@dataclass(frozen=True)
class TfdsRecords:
    """Records of a prepared TFDS split, opened on first use in each process."""

    builder_dir: str
    split: str
    rows: np.ndarray | None = None  # int64 [n] record of each image, if only some of the records are wanted
    image_key: str = "image"

    def encoded(self, i: int) -> bytes:
        return open_records(self.builder_dir, self.split, self.image_key)[self._row(i)][self.image_key]

    def name(self, i: int) -> str:
        row = self._row(i)
        record = open_records(self.builder_dir, self.split, self.image_key)[row]
        return f"{cache.record_name(record, row)} in {self.builder_dir}"

    def _row(self, i: int) -> int:
        return int(i if self.rows is None else self.rows[i])


def newest_version(folder: Path, version: str = "*.*.*") -> Path | None:
    """The newest complete version that TFDS, or our writer, has left in a set's folder."""
    found = [path.parent for path in folder.glob(f"{version}/dataset_info.json")]

    def number(path: Path) -> list[int]:
        return [int(part) if part.isdigit() else 0 for part in path.name.split(".")]

    return max(found, key=number, default=None)


def open_records(builder_dir: str, split: str, image_key: str = "image") -> Any:
    """The random-access TFDS source of a split, opened once in each process; images are encoded files."""
    return _open_records(builder_dir, split, image_key, os.getpid())


def forget_open_records() -> None:
    _open_records.cache_clear()


@functools.lru_cache(maxsize=16)
def _open_records(builder_dir: str, split: str, image_key: str, process: int) -> Any:
    del process  # only part of the cache key: a forked worker must not share file positions with its parent
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(builder_dir)
    return builder.as_data_source(split, decoders={image_key: tfds.decode.SkipDecoding()})
