"""Downloads that resume: bytes go to FILE.part, which is renamed to FILE when its checksum is right."""

import hashlib
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from rose_jax.errors import UserError

_TIMEOUT = 10.0  # seconds without an answer; short, for machines without a network
_BLOCK = 1 << 20


def download(url: str, target: Path, md5: str) -> Path:
    """Fetches `url` to `target` unless it is there; continues what an interrupted run has fetched."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        _fetch(url, part)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"Could not download {url} ({reason}). Run again to continue where it stopped, or fetch the file "
            f"by other means and pass it:  --from {target.name}"
        ) from error
    found = md5_of(part)
    if found != md5:
        part.unlink()
        raise UserError(f"{url} arrived with md5 {found}, expected {md5}. It was removed; run again.")
    part.rename(target)
    return target


def md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fetch(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # there are no bytes after ours: the file is complete
            return
        raise
    with response:
        if response.status != 206:  # the server does not resume
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, disable=not sys.stderr.isatty())
        with bar, part.open("ab" if have else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                bar.update(len(block))
        received = part.stat().st_size
    if total is not None and received < total:
        raise ConnectionError(f"the connection closed after {received} of {total} bytes")
