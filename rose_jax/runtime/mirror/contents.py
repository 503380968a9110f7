"""What of a workdir is complete and worth a copy, and how far a run has come."""

import re
from collections.abc import Iterable
from pathlib import Path

METRICS = "metrics.jsonl"
CONFIG = "config.json"
# Results once more under their own names, for readers of the bucket.
FOR_READERS = ("results.json", "report.html", "report.md", "report.csv", "per_class.csv", "figures/*.png")
_SMALL = (CONFIG, "results.json", "report.*", "per_class.csv", "figures/*", "scores/*.npz", "studies/**/*")
_MANIFEST = ".manifest.json"
_OBJECTIVE = re.compile(r"checkpoints/([^/]+)/")
_STEP = re.compile(r"checkpoints/([^/]+)/task_(\d+)_step_(\d+)\.manifest\.json")
_STAGE = re.compile(r"checkpoints/([^/]+)/stage_(\d+)\.manifest\.json")


def complete_files(workdir: Path) -> list[str]:
    """Paths below the workdir: snapshots, the newest checkpoint inside a task, outcomes, results, and last the log.

    The log must come last: the lines before a checkpoint are then in it.
    """
    found: list[str] = []
    for folder in sorted((workdir / "checkpoints").glob("*/")):
        manifests = [path.name for path in folder.glob(f"*{_MANIFEST}")]
        steps = sorted(name for name in manifests if name.startswith("task_"))
        for manifest in sorted(set(manifests) - set(steps[:-1])):
            inside = (folder / manifest.removesuffix(_MANIFEST)).rglob("*")
            found += [path.relative_to(workdir).as_posix() for path in inside if path.is_file()]
            found.append((folder / manifest).relative_to(workdir).as_posix())
        if manifests:
            found.append((folder / "options.json").relative_to(workdir).as_posix())
    for pattern in _SMALL:
        paths = sorted(path for path in workdir.glob(pattern) if path.is_file())
        found += [path.relative_to(workdir).as_posix() for path in paths if not path.name.startswith(".")]
    return [*found, METRICS]


def in_writing_order(paths: Iterable[str]) -> list[str]:
    """A checkpoint's manifest after its files, the config last: without one a folder is no run's."""
    return sorted(paths, key=lambda path: (path == CONFIG, path.endswith(_MANIFEST), path))


def progress(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(snapshots, newest step inside the task after them) of each objective."""
    paths = list(paths)
    found = {match[1]: (0, 0) for match in map(_OBJECTIVE.match, paths) if match}
    for match in filter(None, map(_STAGE.fullmatch, paths)):
        found[match[1]] = (found[match[1]][0] + 1, 0)
    for match in filter(None, map(_STEP.fullmatch, paths)):
        snapshots, step = found[match[1]]
        if int(match[2]) == snapshots:  # others are of a task that is done
            found[match[1]] = (snapshots, max(step, int(match[3])))
    return found


def is_ahead(one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]) -> bool:
    """Whether `one` has come further in some objective and less far in none."""
    none = (0, 0)
    further = any(reached > other.get(name, none) for name, reached in one.items())
    return further and all(one.get(name, none) >= reached for name, reached in other.items())
