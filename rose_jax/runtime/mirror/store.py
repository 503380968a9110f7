"""A mirror's files behind fsspec: objects named by their content, and manifests that say which make up a run.

    URL/NAME/objects/DIGEST         a file's content
    URL/NAME/manifest_00000012.json what the run consisted of: path -> digest; written after the objects it names
    URL/NAME/report.html, ...       results once more under their own names, for readers

An object store may show a copy before it is whole, or lose a bit: content counts only if its digest agrees, a manifest
only if its own digest does. The manifest before the last stays, with its objects.
"""

import contextlib
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from rose_jax.errors import UserError

T = TypeVar("T")
KEPT_MANIFESTS = 2
TRIES, FIRST_WAIT = 4, 0.5  # seconds; each wait is twice the one before
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}  # which extra of ours brings the package of a scheme


@dataclass(frozen=True)
class Manifest:
    """What a run consisted of when it was copied."""

    number: int
    writer: str  # which workdir it was copied from
    files: dict[str, str]  # path below the workdir -> digest of the content

    def to_json(self) -> bytes:
        content: dict[str, Any] = {"number": self.number, "writer": self.writer, "files": self.files}
        return json.dumps(content | {"digest": _digest_of(content)}, indent=1).encode()


class Store:
    """One run's place below a mirror's URL. Every act is tried again a few times: stores fail now and then."""

    def __init__(self, url: str, name: str):
        self.url = f"{url.rstrip('/')}/{name}"
        self._objects: dict[str, int] | None = None  # digest -> size, of those that are there

    @functools.cached_property
    def _place(self) -> tuple[Any, str]:
        """When it is first used: some file systems look for credentials."""
        return fsspec.core.url_to_fs(self.url)

    @property
    def _fs(self) -> Any:
        return self._place[0]

    @property
    def _root(self) -> str:
        return self._place[1]

    def manifests(self) -> list[int]:
        """Numbers of those that are there, newest first; whether one is whole, `manifest` says."""
        found = (re.fullmatch(r"manifest_(\d+)\.json", name) for name in self._listed(""))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def manifest(self, number: int) -> Manifest | None:
        """None if it is damaged, half written or gone."""
        try:
            content = json.loads(self._tried(lambda: self._fs.cat_file(self._manifest_path(number))))
            digest = content.pop("digest")
            return Manifest(**content) if digest == _digest_of(content) else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def newest(self) -> Manifest | None:
        return next(filter(None, map(self.manifest, self.manifests())), None)

    def has(self, digest: str, size: int) -> bool:
        if self._objects is None:
            self._objects = self._listed("objects")
        return self._objects.get(digest) == size

    def put(self, path: Path, digest: str) -> None:
        """Copies a file's content, unless it is there."""
        size = path.stat().st_size
        if not self.has(digest, size):
            self._make_folder("objects")
            self._tried(lambda: self._fs.put_file(str(path), f"{self._root}/objects/{digest}"))
            assert self._objects is not None
            self._objects[digest] = size

    def get(self, digest: str, target: Path) -> bool:
        """False if the content is gone, damaged or half written."""
        try:
            self._tried(lambda: self._fs.get_file(f"{self._root}/objects/{digest}", str(target)))
        except FileNotFoundError:
            return False
        return file_digest(target) == digest

    def commit(self, manifest: Manifest) -> None:
        """Writes a manifest whose objects are all there, then removes what neither it nor the one before names."""
        self._make_folder("")
        self._tried(lambda: self._fs.pipe_file(self._manifest_path(manifest.number), manifest.to_json()))
        others = [number for number in self.manifests() if number != manifest.number]
        kept = [manifest, *filter(None, map(self.manifest, others[: KEPT_MANIFESTS - 1]))]
        for number in others[KEPT_MANIFESTS - 1 :]:
            self._remove(self._manifest_path(number))
        named = {digest for one in kept for digest in one.files.values()}
        for digest in [digest for digest in self._objects or {} if digest not in named]:
            self._remove(f"{self._root}/objects/{digest}")
            assert self._objects is not None
            del self._objects[digest]

    def show(self, path: Path, name: str) -> None:
        """A copy under its own name, for readers."""
        self._make_folder(name.rpartition("/")[0])
        self._tried(lambda: self._fs.put_file(str(path), f"{self._root}/{name}"))

    def _manifest_path(self, number: int) -> str:
        return f"{self._root}/manifest_{number:08d}.json"

    def _listed(self, folder: str) -> dict[str, int]:
        """Names in a folder with their sizes; none if there is no such folder."""

        def act() -> dict[str, int]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
            except FileNotFoundError:
                return {}
            return {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry.get("size") or 0 for entry in found}

        return self._tried(act)

    def _make_folder(self, name: str) -> None:
        """Which file systems need and object stores do not mind."""
        self._tried(lambda: self._fs.makedirs(f"{self._root}/{name}".rstrip("/"), exist_ok=True))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._tried(lambda: self._fs.rm_file(path))

    def _tried(self, act: Callable[[], T]) -> T:
        wait = FIRST_WAIT
        for _ in range(TRIES - 1):
            try:
                return act()
            except FileNotFoundError:
                raise
            except Exception:  # each package has exceptions of its own
                time.sleep(wait)
                wait *= 2
        return act()


def check_mirror(url: str, workdir: Path | None = None) -> None:
    """A UserError if the URL means nothing here; whether it can be reached is another matter."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    scheme = match[1] if match else "file"
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        install = f"Install it with\n  pip install 'rose-jax[{extra}]'" if extra else f"{error}."
        raise UserError(f"--mirror {url} needs a package that is not installed. {install}") from None
    except ValueError:
        raise UserError(
            f"--mirror {url}: fsspec does not know {scheme}://. Give gs://BUCKET/FOLDER, s3://BUCKET/FOLDER or a path."
        ) from None
    if workdir is not None and not match:
        place = (Path(url).expanduser() / workdir.absolute().name).resolve()
        if place.is_relative_to(workdir.resolve()):
            raise UserError(f"--mirror {url} would lie in the workdir {workdir} itself. Give another place.")


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=20).hexdigest()
