"""Several runs side by side: those that differ in the seed alone become one group with mean and deviation."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rose_jax.config import FREE_KEYS
from rose_jax.report import paper, style
from rose_jax.report.runs import Number, Run, Score, one_line


@dataclass(frozen=True)
class Group:
    """Runs of one setting and one config, in the order they were given; most often a single run."""

    runs: tuple[Run, ...]
    title: str

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.scores))

    def scores(self, method: str) -> list[Score]:
        return [run.scores[method] for run in self.runs if method in run.scores]

    def label(self, method: str) -> str:
        """As figures name it: a star marks a row that the paper does not have, as in the tables."""
        ours = any(score.origin == "ours" for score in self.scores(method))
        return style.short(method) + " *" * ours


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1) over seeds; no deviation for a single run."""

    mean: float
    std: Number
    n: int


def group(runs: Sequence[Run]) -> list[Group]:
    """Runs gathered by everything but their seed, titled by what tells the groups apart."""
    gathered: list[list[Run]] = []
    for run in runs:
        home = next((g for g in gathered if _identity(g[0]) == _identity(run)), None)
        if home is None:
            gathered.append([run])
        else:
            home.append(run)
    titles = [short_title(g[0]) for g in gathered]
    folders = [one_line(g[0].workdir.resolve().name) for g in gathered]
    titles = [t if titles.count(t) == 1 else f"{t} ({f})" for t, f in zip(titles, folders, strict=True)]
    titles = [t if titles.count(t) == 1 else f"{t} #{i + 1}" for i, t in enumerate(titles)]
    return [Group(tuple(g), t) for g, t in zip(gathered, titles, strict=True)]


def spread(values: Sequence[Number]) -> Spread | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(config key, its value in each run) for every key that is not the same in all runs."""
    flat = [_flatten(run.config) for run in runs]
    keys = dict.fromkeys(key for f in flat for key in f)
    rows = [(key, [one_line(f.get(key, "-")) for f in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def short_title(run: Run) -> str:
    """ "CIFAR-100 cold 10, thin"."""
    words = [paper.dataset_label(run.dataset), run.start, str(run.tasks) if run.tasks else ""]
    title = one_line(" ".join(w for w in words if w))
    return f"{title}, {one_line(run.reduced)}" if run.reduced else title


def _identity(run: Run) -> tuple[Any, ...]:
    setting = {k: v for k, v in run.setting.items() if k not in ("seed", "note")}
    config = {k: v for k, v in _flatten(run.config).items() if k not in ("seed", *FREE_KEYS)}
    return setting, config


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{one_line(key)}"
        flat.update(_flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat
