"""A dataset's files by name, whether they lie in a folder, a tar or a zip archive."""

import contextlib
import functools
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rose_jax.errors import UserError

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_DAMAGE = (EOFError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


class Files:
    """Files by their path below the dataset's root folder, with `/` between its parts."""

    def __init__(self, root: str, readers: dict[str, Callable[[], bytes]]):
        self._root, self._readers = root, readers

    def names(self) -> list[str]:
        return sorted(self._readers)

    def read(self, name: str) -> bytes:
        if name not in self._readers:
            raise UserError(f"{self.where(name)} is missing. Fetch the dataset again.")
        return self._readers[name]()

    def where(self, name: str) -> str:
        return self._root + name


@contextlib.contextmanager
def open_files(source: str | Path, marker: str) -> Iterator[Files]:
    """The folder or archive at `source`; its root is where the file or folder `marker` lies (say wnids.txt)."""
    path = Path(source).expanduser()
    if not path.is_file():
        root = root_folder(path, marker)
        paths = (path for path in root.rglob("*") if path.is_file())
        yield Files(f"{root}/", {path.relative_to(root).as_posix(): path.read_bytes for path in paths})
        return
    if not path.name.lower().endswith(_ARCHIVES):
        raise UserError(f"{path} is neither a folder nor an archive (.zip, .tar, .tar.gz).")
    try:
        with _members(path) as members:
            prefix = _prefix(sorted(members), marker, path)
            inside = {name.removeprefix(prefix): read for name, read in members.items() if name.startswith(prefix)}
            yield Files(f"{path}:{prefix}", inside)
    except _DAMAGE as error:
        raise UserError(
            f"{path} is truncated or damaged ({type(error).__name__}: {error}). "
            "Fetch it again; nothing was prepared."
        ) from error


def root_folder(path: Path, marker: str) -> Path:
    """The folder `path`, or one in it, that holds `marker`."""
    if not path.exists():
        raise UserError(f"{path} does not exist. Give --from the folder or archive that holds {marker!r}.")
    for folder in (path, *sorted(path.iterdir())):
        if (folder / marker).exists():
            return folder
    raise UserError(f"Neither {path} nor a folder in it holds {marker!r}: not the folder of this dataset.")


@contextlib.contextmanager
def _members(path: Path) -> Iterator[dict[str, Callable[[], bytes]]]:
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
            yield {info.filename: functools.partial(archive.read, info) for info in files}
    else:
        with tarfile.open(path) as tar:
            named = {info.name.removeprefix("./"): info for info in tar.getmembers() if info.isfile()}
            yield {name: functools.partial(_read_member, tar, info) for name, info in named.items()}


def _read_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    assert file is not None  # it is a regular file
    return file.read()


def _prefix(names: list[str], marker: str, path: Path) -> str:
    """What stands before the dataset's names in an archive, with its slash, or nothing."""
    for name in names:
        at = f"/{name}".find(f"/{marker}")
        if at >= 0 and name[at + len(marker) : at + len(marker) + 1] in ("", "/"):
            return name[:at]
    raise UserError(f"{path} does not hold {marker!r}: not the archive of this dataset, or not all of it.")
