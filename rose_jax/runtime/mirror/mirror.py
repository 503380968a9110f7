"""Fills a workdir from its mirror, then copies what becomes complete, in a thread that training never waits for."""

import contextlib
import functools
import json
import logging
import shutil
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

from rose_jax.runtime.files import link_or_copy, write_atomic, write_text
from rose_jax.runtime.mirror import contents
from rose_jax.runtime.mirror.contents import CONFIG, METRICS, is_ahead, progress
from rose_jax.runtime.mirror.store import Manifest, Store, file_digest

LOOK_SECONDS = 5.0  # between two looks at the workdir
LONGEST_WAIT = 120.0  # between two tries while the mirror cannot be reached
PATIENCE = {"done": 600.0, "stopped": 20.0}  # seconds for the last copy; a spot VM has 30 after its notice
_STAGING, _WRITER = ".mirror", ".mirror_writer"


class Mirror:
    """Of one workdir, on one process, under the workdir's lock."""

    def __init__(self, url: str, workdir: Path):
        self.workdir, self.store = workdir, Store(url, workdir.name)
        self._ours = ""  # this workdir's name as a writer of manifests
        self._newest: Manifest | None = None  # of the mirror, once it was read
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}  # path -> what its content was known by, digest
        self._failing = self._read = False
        self._wake, self._end = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="mirror", daemon=True)

    def saved_config(self) -> dict[str, Any] | None:
        """The config of the run that the mirror holds; None if it holds none, or cannot be reached."""
        with self._reaching(), tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / CONFIG
            for manifest in self._whole_manifests():
                if CONFIG in manifest.files and self.store.get(manifest.files[CONFIG], target):
                    return json.loads(target.read_text())
        return None

    def fill(self) -> None:
        """Takes what the mirror holds, if the workdir is empty or what is there has come less far.

        Everything is fetched and verified before the first file is put in its place, so that a failure leaves the
        workdir as it was; the config comes last, so that a kill leaves a folder that counts as empty.
        """
        shutil.rmtree(self.workdir / _STAGING, ignore_errors=True)
        with self._reaching():
            manifests = self._whole_manifests()
            self._newest, self._read = manifests[0] if manifests else None, True
            if not manifests or not self._wanted(manifests[0]):
                return
            with self._staging() as staging:
                fetched: dict[str, Path | None] = {}  # None: not whole
                whole = next((m for m in manifests if self._fetched(m, staging, fetched)), None)
                taken = whole or manifests[0]
                lost = [path for path, digest in taken.files.items() if fetched[digest] is None]
                if lost:
                    logging.warning(
                        "Mirror %s: %d damaged copies are not used, as that of %s.",
                        *(self.store.url, len(lost), lost[0]),
                    )
                for objective in progress(taken.files):  # of a checkpoint, files of two would not go together
                    shutil.rmtree(self.workdir / "checkpoints" / objective, ignore_errors=True)
                for path in contents.in_writing_order(taken.files):
                    source = fetched[taken.files[path]]
                    if source is not None:
                        with source.open("rb") as file:
                            write_atomic(self.workdir / path, functools.partial(shutil.copyfileobj, file))
            logging.info("Took %d files of %s from its mirror.", len(taken.files) - len(lost), self.store.url)

    def start(self) -> None:
        """Begins to copy; to be called when the workdir is the run's."""
        path = self.workdir / _WRITER
        if not path.exists():
            write_text(path, uuid.uuid4().hex)
        self._ours = path.read_text().strip()
        self._thread.start()

    def close(self, why: str = "done") -> None:
        """Copies what is new and ends; gives up after a while ("done" or "stopped" says how long)."""
        if self._thread.is_alive():
            self._end = True
            self._wake.set()
            patience = PATIENCE["stopped" if self._failing else why]
            self._thread.join(patience)
            if self._thread.is_alive() and not self._failing:
                logging.warning(
                    "The last copy to %s was not finished in %.0f s; the one before is whole.",
                    *(self.store.url, patience),
                )

    # The thread.

    def _watch(self) -> None:
        wait = LOOK_SECONDS
        while True:
            last = self._end
            with self._reaching():
                self.copy()
            if last:
                return
            wait = min(2 * wait, LONGEST_WAIT) if self._failing else LOOK_SECONDS
            self._wake.wait(wait)

    def copy(self) -> None:
        """One look at the workdir: copies what is new, then a manifest of all of it."""
        if not self._read:  # it could not be reached before
            self._newest, self._read = self.store.newest(), True
        with self._staging() as staging:
            paths = contents.complete_files(self.workdir)
            theirs = self._newest
            if theirs and theirs.writer != self._ours and is_ahead(progress(theirs.files), progress(paths)):
                return  # another machine came further: its copy stays until this one has caught up
            files, staged = {}, {}
            for number, path in enumerate(paths):
                staged[path] = self._stage(path, staging / str(number))
            for path, source in staged.items():
                if source is not None:
                    self.store.put(source, self._known[path][1])
                if path in self._known:
                    files[path] = self._known[path][1]
            if CONFIG not in files or (theirs and theirs.writer == self._ours and theirs.files == files):
                return
            manifest = Manifest(theirs.number + 1 if theirs else 1, self._ours, files)
            self.store.commit(manifest)
            self._newest = manifest
            shown = [p for pattern in contents.FOR_READERS for p in files if Path(p).match(pattern)]
            for path in shown if "results.json" in files else ():
                if theirs is None or theirs.files.get(path) != files[path]:
                    with contextlib.suppress(FileNotFoundError):
                        self.store.show(self.workdir / path, path)

    def _stage(self, path: str, target: Path) -> Path | None:
        """A second name for a file that is new or changed, lest it is replaced or removed while it is copied.

        None if it is as it was when it was last copied, or gone; then it is not known either.
        """
        source = self.workdir / path
        try:
            stat = source.stat()
            seen = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
            if path in self._known and self._known[path][0] == seen:
                return None
            if path == METRICS:  # which grows: its whole lines up to now
                lines = source.read_bytes()
                target.write_bytes(lines[: lines.rfind(b"\n") + 1])
            else:
                link_or_copy(source, target)
        except FileNotFoundError:
            self._known.pop(path, None)
            return None
        self._known[path] = (seen, file_digest(target))
        return target

    @contextlib.contextmanager
    def _staging(self) -> Any:
        folder = self.workdir / _STAGING
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _reaching(self) -> Any:
        """What a store raises is one warning for each time that it is out of reach, and training goes on."""
        try:
            yield
        except Exception as error:
            self._known.clear()  # what was staged may not have arrived
            if not self._failing:
                logging.warning(
                    "The mirror %s cannot be reached (%s: %s). The run goes on without it, and tries again.",
                    *(self.store.url, type(error).__name__, error),
                )
            self._failing = True
        else:
            if self._failing:
                logging.info("The mirror %s can be reached again.", self.store.url)
            self._failing = False

    # Filling.

    def _whole_manifests(self) -> list[Manifest]:
        """Those that are readable, newest first."""
        return [found for found in map(self.store.manifest, self.store.manifests()) if found is not None]

    def _wanted(self, manifest: Manifest) -> bool:
        if not (self.workdir / CONFIG).exists():
            return True
        return is_ahead(progress(manifest.files), progress(contents.complete_files(self.workdir)))

    def _fetched(self, manifest: Manifest, staging: Path, fetched: dict[str, Path | None]) -> bool:
        """Fetches what a manifest names and was not fetched yet; whether all of it is whole."""
        for digest in manifest.files.values():
            if digest not in fetched:
                target = staging / digest
                fetched[digest] = target if self.store.get(digest, target) else None
        return all(fetched[digest] is not None for digest in manifest.files.values())
