"""Gathers runs that differ in the seed alone into groups, and computes mean and deviation over the seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rose_jax.config import FREE_KEYS
from rose_jax.report import paper
from rose_jax.report.runs import Number, Run, Score, one_line

_NAMES = ("seed", "name", *FREE_KEYS)  # which say nothing of what a run computes
MARKS = {"ours": " *", "published": " †"}  # by Score.origin


@dataclass(frozen=True)
class Group:
    """Runs of one setting and one config, each with its own seed, in the order they were given; often just one run."""

    runs: tuple[Run, ...]
    title: str

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.scores))

    def scores(self, method: str) -> list[Score]:
        return [run.scores[method] for run in self.runs if method in run.scores]

    def over_seeds(self, method: str, field: str) -> "Spread | None":
        """Mean and deviation of a field of Score, such as "last"; None if no run has a number there."""
        return spread(getattr(score, field) for score in self.scores(method))

    def mark(self, method: str) -> str:
        """What follows the name of a row that the paper does not have."""
        return next((MARKS[score.origin] for score in self.scores(method) if score.origin in MARKS), "")

    def events(self) -> list[str]:
        """What went wrong in test streams, a sentence for each run and row in which something did."""
        found = []
        for run in self.runs:
            which = f", seed {one_line(run.seed)}" if len(self.runs) > 1 else ""
            rows = {name: score.events for name, score in run.scores.items() if score.events}
            found += [f"{name}{which}: {'; '.join(events)}." for name, events in rows.items()]
        return found

    def leading(self, methods: Sequence[str], most: int, first: Sequence[str] = ("rose", "base")) -> list[str]:
        """At most `most` of the methods, in their order: those named in `first`, then the best by last accuracy."""

        def rank(name: str) -> tuple[bool, float]:
            last = self.over_seeds(name, "last")
            return paper.canonical(name) not in first, -(last.mean if last else 0.0)

        kept = sorted(methods, key=rank)[:most]
        return [name for name in methods if name in kept]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1) of several values; one value has no deviation."""

    mean: float
    std: Number

    def text(self, digits: int = 2, sign: str = "") -> str:
        """ "12.34", or "12.34 ± 0.56" of several values; with sign="+" a plus stands before a positive mean."""
        deviation = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:{sign}.{digits}f}{deviation}"


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups of runs that differ in the seed alone. Two runs with the same seed never share a group: a rerun of one
    seed says nothing about the deviation over seeds. The titles of the groups are all different."""
    gathered: list[list[Run]] = []
    for run in runs:
        alike = (g for g in gathered if identity(g[0]) == identity(run))
        home = next((g for g in alike if run.seed not in [member.seed for member in g]), None)
        if home is None:
            gathered.append([run])
        else:
            home.append(run)
    titles = [short_title(g[0]) for g in gathered]
    folders = [one_line(g[0].workdir.resolve().name) for g in gathered]
    settings = [title.removesuffix(", custom") for title in titles]  # what was changed says more than that word
    told = [
        _difference(g[0], [h[0] for h, other in zip(gathered, settings, strict=True) if other == setting])
        for g, setting in zip(gathered, settings, strict=True)
    ]
    titles = [f"{s}, {d}" if d else t for t, s, d in zip(titles, settings, told, strict=True)]
    titles = [t if titles.count(t) == 1 else f"{t} ({f})" for t, f in zip(titles, folders, strict=True)]
    titles = [t if titles.count(t) == 1 else f"{t} #{i + 1}" for i, t in enumerate(titles)]
    return [Group(tuple(g), t) for g, t in zip(gathered, titles, strict=True)]


def _difference(run: Run, others: Sequence[Run]) -> str:
    """ "alpha 0.02": the one or two options of a run's config that the others do not share; "" if there are more."""
    flat = [flatten(other.config) for other in others]
    every = [key for key in dict.fromkeys(key for config in flat for key in config) if key not in _NAMES]
    keys = [key for key in every if len({repr(config.get(key)) for config in flat}) > 1]
    here = flatten(run.config)
    named = [f"{key.rsplit('.', 1)[-1]} {one_line(here.get(key, '-'))}" for key in keys]
    return ", ".join(named) if 1 <= len(named) <= 2 else ""


def distinct_names(groups: Sequence[Group]) -> list[str]:
    """The titles without the parts that they all share, for the legend of a figure that they share."""
    parts = [group.title.split(", ") for group in groups]
    common = set.intersection(*map(set, parts)) if len(groups) > 1 else set()
    short = [", ".join(part for part in found if part not in common) for found in parts]
    return short if all(short) and len(set(short)) == len(short) else [group.title for group in groups]


def spread(values: Iterable[Number]) -> Spread | None:
    """Of the values that are finite numbers; None if there is none."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


def points(gap: float, digits: int = 2) -> str:
    """ "1.23 points above", for sentences that compare two accuracies."""
    return f"{abs(gap):.{digits}f} points {'above' if gap >= 0 else 'below'}"


def short_title(run: Run) -> str:
    """ "CIFAR-100 cold 10, thin"."""
    words = [paper.dataset_label(run.dataset), run.start, str(run.tasks) if run.tasks else ""]
    title = one_line(" ".join(w for w in words if w))
    return f"{title}, {one_line(run.reduced)}" if run.reduced else title


def identity(run: Run) -> tuple[Any, ...]:
    """All of the setting and the config that can change a number, except the seed."""
    # Names and normalisation follow from the data, and runs of earlier versions do not have them.
    setting = {k: v for k, v in run.setting.items() if k not in ("seed", "note", "class_names", "images")}
    config = {k: v for k, v in flatten(run.config).items() if k not in ("seed", *FREE_KEYS)}
    return setting, config


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A config by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{one_line(key)}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat
