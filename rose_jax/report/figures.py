"""The figures of a report. Each function draws one, or returns None if the run has nothing to draw."""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rose_jax.report import plots, studies, style
from rose_jax.report.compare import Group
from rose_jax.report.heatmaps import confusion, matrix

MOST_CURVE_PANELS = 6
MOST_BARS = 6  # methods whose bars are still wide enough for a number above each
PAPER_OLD_NEW = ("base", "projector", "ldc", "fcs", "rose")  # rows of fig:oldnew: ldc after a cold start, fcs warm


@dataclass(frozen=True)
class Picture:
    """One figure as PNG, on a light and on a dark background."""

    light: bytes
    dark: bytes


def draw(groups: Sequence[Group], names: Sequence[str] | None = None) -> dict[str, Picture]:
    """Every figure (or those in `names`) that the runs have data for, and one per study under the study's name.

    The curves are of all groups, every other figure is of the first group.
    """
    group = groups[0]
    makers: dict[str, Callable[[], Figure | None]] = {"curves": lambda: curves(groups)}
    for make in (old_new, confusion, matrix, drift_cosines, cost):
        makers[make.__name__] = functools.partial(make, group)
    for study in studies.of(group):
        makers[study.name] = functools.partial(study.draw, group.title)
    wanted = {name: make for name, make in makers.items() if names is None or name in names}
    drawn = {name: (png(make, "light"), png(make, "dark")) for name, make in wanted.items()}
    return {name: Picture(light, dark) for name, (light, dark) in drawn.items() if light and dark}


def curves(groups: Sequence[Group]) -> Figure | None:
    """Accuracy over all seen classes after each task; a band of one deviation over several seeds."""
    panels = [
        {
            "title": style.title(group.title, "accuracy after each task"),
            "series": [
                plots.by_stage(m, group.label(m), [score.per_stage for score in group.scores(m)])
                for m in group.methods
            ],
        }
        for group in groups[:MOST_CURVE_PANELS]
    ]
    return plots.lines(plots.stage_lines() | {"panels": panels}, "")


def old_new(group: Group) -> Figure | None:
    """Last accuracy on old and on new classes, as in the paper's fig:oldnew; None with fewer than two methods."""
    known = [m for m in group.methods if group.over_seeds(m, "old") and group.over_seeds(m, "new")]
    if len(known) < 2:
        return None
    chosen = group.leading(known, MOST_BARS, PAPER_OLD_NEW)
    colors = [style.look(m).color for m in chosen]
    # Methods that share a colour differ in their hatching.
    variants = [colors[:i].count(color) for i, color in enumerate(colors)]
    series = [_series(group, m, "old", "new", variant=v) for m, v in zip(chosen, variants, strict=True)]
    data = {"y": "last accuracy, %", "groups": ["old classes", "new classes"], "series": series}
    return plots.bars(data, style.title(group.title, "old and new classes"))


def drift_cosines(group: Group) -> Figure | None:
    """Histograms of the cosine between the estimated and the true move of each old prototype, best on top."""
    series = [
        {"method": m, "label": group.label(m), "y": [c for s in group.scores(m) for c in s.drift_cosines]}
        for m in group.methods
    ]
    data = {"x": "cosine of estimated and true drift (line: mean)", "series": series}
    return plots.histograms(data, style.title(group.title, "drift of the old prototypes"))


def cost(group: Group) -> Figure | None:
    """Milliseconds per test image, a bar per method."""
    data = {"x": "ms per test image", "series": [_series(group, m, "ms_per_image") for m in group.methods]}
    return plots.rows(data, style.title(group.title, "cost at test time"))


def _series(group: Group, method: str, *fields: str, **more: Any) -> dict:
    """Of each field of Score the mean and deviation over the runs."""
    values = [[getattr(score, field) for score in group.scores(method)] for field in fields]
    return plots.series(method, group.label(method), values, **more)


def png(make: Callable[[], Figure | None], theme: str) -> bytes | None:
    """The figure that `make` draws under a theme, "light" or "dark", as PNG; None if it draws none."""
    with matplotlib.rc_context(style.theme(theme)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        figure = make()
        return None if figure is None else style.png(figure)
