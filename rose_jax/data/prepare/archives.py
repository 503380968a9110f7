"""A dataset's files by name, whether they lie in a folder, a tar or a zip archive."""

import contextlib
import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from rose_jax.errors import UserError

_DAMAGE = (EOFError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


class Files(Protocol):
    """Files by their path below the dataset's root folder, with `/` between its parts."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def where(self, name: str) -> str: ...


@contextlib.contextmanager
def open_files(source: str | Path, marker: str) -> Iterator[Files]:
    """The folder or archive at `source`; its root is where the file or folder `marker` lies (say wnids.txt).

    `source` may also be the folder that contains the root.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(f"{path} does not exist. Give --from the folder or archive that holds {marker!r}.")
    if path.is_dir():
        root = next((p for p in [path, *sorted(path.iterdir())] if (p / marker).exists()), None)
        if root is None:
            raise UserError(f"Neither {path} nor a folder in it holds {marker!r}: not the folder of this dataset.")
        yield _Folder(root)
        return
    with _open_archive(path) as archive:
        archive.root = _find_root(archive.names(), marker, path)
        yield archive


def md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class _Folder:
    def __init__(self, root: Path):
        self._root = root

    def names(self) -> list[str]:
        return sorted(p.relative_to(self._root).as_posix() for p in self._root.rglob("*") if p.is_file())

    def read(self, name: str) -> bytes:
        path = self._root / name
        if not path.is_file():
            raise UserError(f"{path} is missing. Fetch the dataset again.")
        return path.read_bytes()

    def where(self, name: str) -> str:
        return str(self._root / name)


class _Archive:
    """A tar or zip file; `root` is the prefix of the dataset's names in it, with its slash, or empty."""

    def __init__(self, archive: tarfile.TarFile | zipfile.ZipFile, path: Path):
        self._archive = archive
        self._path = path
        self._members: dict[str, tarfile.TarInfo | zipfile.ZipInfo]
        if isinstance(archive, tarfile.TarFile):
            with _reporting_damage(path):  # listing a tar reads it to its end
                self._members = {m.name.removeprefix("./"): m for m in archive.getmembers() if m.isfile()}
        else:
            self._members = {m.filename: m for m in archive.infolist() if not m.is_dir()}
        self.root = ""

    def names(self) -> list[str]:
        return sorted(n.removeprefix(self.root) for n in self._members if n.startswith(self.root))

    def read(self, name: str) -> bytes:
        member = self._members.get(self.root + name)
        if member is None:
            raise UserError(f"{self.where(name)} is missing. Fetch the dataset again.")
        with _reporting_damage(self._path):
            if isinstance(self._archive, zipfile.ZipFile):
                assert isinstance(member, zipfile.ZipInfo)
                return self._archive.read(member)
            assert isinstance(member, tarfile.TarInfo)
            file = self._archive.extractfile(member)
            assert file is not None  # it is a regular file
            return file.read()

    def where(self, name: str) -> str:
        return f"{self._path}:{self.root}{name}"


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[_Archive]:
    name = path.name.lower()
    if not name.endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")):
        raise UserError(f"{path} is neither a folder nor an archive (.zip, .tar, .tar.gz).")
    opener: Callable[[Path], tarfile.TarFile | zipfile.ZipFile]
    opener = zipfile.ZipFile if name.endswith(".zip") else tarfile.open
    with _reporting_damage(path):
        archive = opener(path)
    with archive:
        yield _Archive(archive, path)


@contextlib.contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise UserError(
            f"{path} is truncated or damaged ({type(error).__name__}: {error}). "
            "Fetch it again; nothing was prepared."
        ) from error


def _find_root(names: list[str], marker: str, path: Path) -> str:
    for name in names:
        at = f"/{name}".find(f"/{marker}")
        if at >= 0 and name[at + len(marker) : at + len(marker) + 1] in ("", "/"):
            return name[:at]
    raise UserError(f"{path} does not hold {marker!r}: not the archive of this dataset, or not all of it.")
