"""The only file that imports Orbax: verified checkpoints, written in the background.

Orbax commits a folder atomically but restores a flipped bit without an error. So each folder has a manifest of
checksums, written after the commit; a checkpoint counts only if its manifest is there and agrees.
"""

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from rose_jax.errors import UserError
from rose_jax.runtime.files import link_or_copy, write_json

DISK_WORDS = ("ENOSPC", "EDQUOT", "No space left", "quota exceeded", "RESOURCE_EXHAUSTED", "EIO", "Errno")


class Checkpoints:
    """Named checkpoints in a folder. `save` returns at once; `wait` returns when all is on disk."""

    def __init__(self, folder: Path, read_only: bool = False):
        """read_only: nothing in the folder is touched, which may belong to a run that is training."""
        self.folder = folder.absolute()
        if not read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
        if jax.process_index() == 0 and not read_only:
            for leftover in self.folder.glob("*.orbax-checkpoint-tmp*"):  # of a run that was killed
                shutil.rmtree(leftover, ignore_errors=True)
        self._checkpointer = ocp.StandardCheckpointer()
        self._worker = ThreadPoolExecutor(1)
        self._pending: tuple[str, Future[None]] | None = None

    def save(self, name: str, tree: Any, *, note: Any = None, keep: int | None = None) -> None:
        """Saves `tree` and a JSON `note` under `name`.

        After that, all but the newest `keep` with the same prefix (before the last "_") are removed.
        """
        self.wait()
        self.remove(name)  # a killed run may have left it incomplete
        with self._explained(name):
            self._checkpointer.save(self.folder / name, tree, force=True)
        self._pending = (name, self._worker.submit(self._commit, name, note, keep))

    def wait(self) -> None:
        if self._pending is not None:
            name, future = self._pending
            self._pending = None
            with self._explained(name):
                future.result()

    def busy(self) -> bool:
        """Whether the last save is still being written; another `save` would wait for it."""
        return self._pending is not None and not self._pending[1].done()

    def usable(self, name: str) -> bool:
        """Whether it is there and undamaged; a damaged one is named in a warning."""
        problem = self.problem(name)
        if problem not in ("", "absent"):
            logging.warning("Checkpoint %s is not used: %s.", self.folder / name, problem)
        return problem == ""

    def restore(self, name: str, placement: Any, like: Any = None) -> Any:
        """The checkpoint on the devices of `placement`: as nested dictionaries, or in the structure of `like`."""
        if like is None:
            like = self._checkpointer.metadata(self.folder / name).item_metadata.tree
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement), like)
        return self._checkpointer.restore(self.folder / name, target)

    def take(self, name: str, other: Path) -> bool:
        """Takes over a checkpoint of another folder, if it is whole there. For one process; files are linked."""
        try:
            self.remove(name)
            for path in sorted((other / name).rglob("*")):
                if path.is_file():
                    link_or_copy(path, self.folder / name / path.relative_to(other / name))
            link_or_copy(_manifest(other, name), _manifest(self.folder, name))
        except OSError:  # absent, or being removed just now
            whole = False
        else:
            whole = self.usable(name)
        if not whole:
            self.remove(name)
        return whole

    def note(self, name: str) -> Any:
        return read_note(self.folder, name)

    def names(self, prefix: str) -> list[str]:
        """Committed checkpoints PREFIX_NUMBER, oldest first (numbers are zero-padded)."""
        return self._numbered(prefix, ".manifest.json")

    def attempts(self, prefix: str) -> list[str]:
        """The same, with those that were not completely written."""
        return self._numbered(prefix, "")

    def _numbered(self, prefix: str, ending: str) -> list[str]:
        found = {path.name.removesuffix(".manifest.json") for path in self.folder.glob(f"{prefix}_*{ending}")}
        return sorted(name for name in found if name.removeprefix(f"{prefix}_").isdigit())

    def problem(self, name: str) -> str:
        """What is wrong with a checkpoint, "" if nothing."""
        manifest = _manifest(self.folder, name)
        try:
            if not manifest.exists():
                return "it was not completely written" if (self.folder / name).exists() else "absent"
            try:
                saved = json.loads(manifest.read_text())
                expected, own = dict(saved["files"]), _digest(saved["files"], saved["note"])
                if saved.get("digest", own) != own:  # older manifests have none
                    return "its manifest does not have the content that was written"
            except (ValueError, KeyError, TypeError, AttributeError):
                return "its manifest is not readable"
            actual = _checksums(self.folder / name)
        except FileNotFoundError as error:
            return f"{error.filename} is missing"
        except OSError as error:  # may pass; damaged checkpoints are removed, so this must not count as one
            raise UserError(
                f"The checkpoint {self.folder / name} cannot be read: {error.strerror}. Nothing was changed. Solve that "
                "(permissions, a missing file system, too many open files) and run the same command again."
            ) from error
        differing = sorted(file for file in expected | actual if expected.get(file) != actual.get(file))
        return f"{differing[0]} does not have the content that was written" if differing else ""

    def remove(self, name: str) -> None:
        if jax.process_index() == 0:
            _manifest(self.folder, name).unlink(missing_ok=True)  # first: without it the folder does not count
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def remove_all(self, prefix: str, newer_than: int = -1) -> None:
        """Removes the checkpoints PREFIX_NUMBER, incomplete ones too, whose number is larger."""
        for name in self.attempts(prefix):
            if int(name.rsplit("_", 1)[1]) > newer_than:
                self.remove(name)

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            self._checkpointer.close()

    def _commit(self, name: str, note: Any, keep: int | None) -> None:
        self._checkpointer.wait_until_finished()
        if jax.process_index() == 0:
            files = _checksums(self.folder / name)
            write_json(
                _manifest(self.folder, name), {"files": files, "note": note, "digest": _digest(files, note)}
            )
            if keep is not None:
                for old in self.names(name.rsplit("_", 1)[0])[:-keep]:
                    self.remove(old)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """One message for the many errors that Orbax and tensorstore raise when a disk is full."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, OSError) and not any(word in str(error) for word in DISK_WORDS):
                error.add_note(f"While the checkpoint {self.folder / name} was written. Earlier ones are intact.")
                raise
            free = shutil.disk_usage(self.folder).free / 2**20
            raise UserError(
                f"The checkpoint {self.folder / name} could not be written ({free:.0f} MiB are free there): {error}\n"
                "Earlier checkpoints are intact. Make room or repair the disk, then run the same command again."
            ) from error


def committed(folder: Path, name: str) -> bool:
    """Whether a checkpoint was completely written; whether it still is whole, `Checkpoints.usable` says."""
    return _manifest(folder, name).exists()


def read_note(folder: Path, name: str) -> Any:
    """What was saved with a checkpoint as its note."""
    return json.loads(_manifest(folder, name).read_text())["note"]


def _manifest(folder: Path, name: str) -> Path:
    return folder / f"{name}.manifest.json"


def _digest(files: dict[str, str], note: Any) -> str:
    return hashlib.blake2b(json.dumps([files, note], sort_keys=True).encode()).hexdigest()


def _checksums(folder: Path) -> dict[str, str]:
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                sums[str(path.relative_to(folder))] = hashlib.file_digest(file, "blake2b").hexdigest()
    return sums
