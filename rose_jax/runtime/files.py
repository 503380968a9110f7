"""Small files, written atomically: under a temporary name, flushed, then renamed."""

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rose_jax.errors import UserError


def write_atomic(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_file(option: str, path: Path) -> None:
    """A UserError unless a file could be written there: told before the work, not after it."""
    refuse_address(option, path)
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder. Give the name of a file in it.")
    check_folder(option, path.parent)


def check_folder(option: str, folder: Path) -> None:
    """A UserError unless `folder` is there and can be written to, or could be made."""
    refuse_address(option, folder)
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise UserError(f"{option}: {there} is a file, not a folder. Give another place.")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UserError(f"{option}: cannot write to {there} ({error.strerror}). Give another place.") from None


def refuse_address(option: str, place: str | Path) -> None:
    """Object stores are no folders, and have neither locks nor renames; Python would make a folder called gs:."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", str(place))
    if scheme:
        raise UserError(
            f"{option} {place} is an address ({scheme[1]}:), not a folder. Give a folder on a disk or a shared file "
            "system that has locks and renames (NFS, Lustre), and copy what is in it to the bucket when it is done (of a run --mirror keeps a copy there)."
        )


def is_leftover(path: Path) -> bool:
    """Whether it is a temporary file of write_atomic or hosts.check_shared, left by a killed process."""
    return path.is_file() and bool(re.fullmatch(r"\..+\.[a-z0-9_]{8}|\.shared_\d+", path.name))


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: NaN and infinities, which JSON does not have, become null."""
    write_text(path, json.dumps(_plain(value), indent=1, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    write_atomic(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        with source.open("rb") as file:
            write_atomic(target, lambda copy: shutil.copyfileobj(file, copy))


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """None if the file is absent or damaged (npz members carry a checksum)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # zipfile, zlib and NumPy raise different ones
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
