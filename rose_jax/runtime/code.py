"""Which code a run was made with."""

import importlib.metadata
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def version(package: Path = PACKAGE) -> str:
    """Such as "0.1.0, commit 1a2b3c4d5e6f"; with "and changes" if files of the package differ from that commit."""
    number = importlib.metadata.version("rose-jax")
    # A package installed into an environment may lie inside a checkout of something else, which does not track it.
    if not _git(package, "ls-files", "--", "__init__.py"):
        return number
    commit = _git(package, "rev-parse", "--short=12", "HEAD")
    changed = _git(package, "status", "--porcelain", "--", ".")
    return f"{number}, commit {commit}" + (" and changes" if changed else "") if commit else number


def _git(folder: Path, *arguments: str) -> str:
    """What git prints; "" without git, without a checkout, or where git does not trust it."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
