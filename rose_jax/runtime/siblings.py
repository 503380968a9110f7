"""Runs that lie beside a run and were made of the same seed, data, scenario and model.

What they have trained and scored is named by all that it depends on (run/identity.py), so that a run may take it over
instead of making it again. Files are hard-linked: one copy on the disk, and each run stays whole when another is
deleted. A kill leaves nothing that counts: a snapshot does so only with its manifest, which comes last.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rose_jax.runtime.agreement import LAYOUT, difference, differing_options
from rose_jax.runtime.files import link_or_copy


class Siblings:
    def __init__(self, path: Path, runs: Iterable[Path] = ()):
        """path: the run's own folder."""
        self.path, self.runs = path, list(runs)

    def with_encoders(self, objective: str, options: dict[str, Any]) -> Iterator[Path]:
        """Those that have trained the objective with these options, or a part of its tasks."""
        for run in self.runs:
            there = _read(run / "checkpoints" / objective / "options.json")
            if there is not None and not differing_options(there, options):
                yield run

    def take(self, paths: Iterable[Path]) -> None:
        """Files below the run's folder that are not there, from the first sibling that has them."""
        for path in paths:
            places = (run / path.relative_to(self.path) for run in self.runs)
            source = None if path.exists() else next(filter(Path.is_file, places), None)
            if source is not None:
                with contextlib.suppress(OSError):  # deleted just now, or not to be read: then it is made here
                    link_or_copy(source, path)


def find(path: Path, here: dict[str, Any]) -> Siblings:
    """here: the run's configuration, as it is saved."""
    found = []
    for config in sorted(path.parent.glob("*/config.json")):
        there = _read(config) if config.parent != path else None
        if there is not None and there.get("layout") == LAYOUT and not difference(there, here):
            found.append(config.parent)
    return Siblings(path, found)


def _read(path: Path) -> dict[str, Any] | None:
    """None if it is not an object: somebody else's file, which is none of our business."""
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return saved if isinstance(saved, dict) else None
