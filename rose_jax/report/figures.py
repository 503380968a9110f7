"""What the report's own figures show, as plain data for plots.py, which draws nothing where the runs have no numbers."""

import itertools
from collections.abc import Sequence
from typing import Any

from rose_jax.report import plots, style
from rose_jax.report.compare import Group, spread
from rose_jax.report.runs import Grid

MOST_CURVE_PANELS = 6
MOST_BARS = 6  # methods whose bars are still wide enough for a number above each
MOST_GRIDS = 4
PAPER_OLD_NEW = ("base", "projector", "ldc", "fcs", "rose")  # rows of fig:oldnew: ldc after a cold start, fcs warm


def curves(groups: Sequence[Group], title: str = "") -> dict[str, Any]:
    """Accuracy over all seen classes after each task, a panel per group; a band of one deviation over several seeds."""
    panels = []
    for group in groups[:MOST_CURVE_PANELS]:
        runs = {m: [score.per_stage for score in group.scores(m)] for m in group.methods}
        lines = [plots.by_stage(m, _label(group, m), runs[m]) for m in runs]
        panels.append({"title": style.title(group.title, title) if title else "", "series": lines})
    return plots.stage_lines() | {"panels": panels}


def old_new(group: Group) -> dict[str, Any]:
    """Last accuracy on old and on new classes, as in the paper's fig:oldnew; bars of one method would compare nothing."""
    known = [m for m in group.methods if group.over_seeds(m, "old") and group.over_seeds(m, "new")]
    chosen = group.leading(known, MOST_BARS, PAPER_OLD_NEW)
    colors = [style.look(m).color for m in chosen]
    # Methods that share a colour differ in their hatching.
    variants = [colors[:i].count(color) for i, color in enumerate(colors)]
    bars = [_series(group, m, "old", "new", variant=v) for m, v in zip(chosen, variants, strict=True)]
    groups = ["old classes", "new classes"]
    return {"kind": "bars", "y": "last accuracy, %", "groups": groups, "series": bars if len(bars) > 1 else []}


def confusion(group: Group) -> dict[str, Any]:
    """Where the test images of each task (row) are placed after the last stage, in per cent of the row."""
    grids = {m: row_percent(mean_grid(group, m, "confusion")) for m in group.methods}
    return _grids(group, grids, x="predicted task", y="true task", colors="% of the true task")


def matrix(group: Group) -> dict[str, Any]:
    """Accuracy on each task (column) after each stage (row)."""
    grids = {m: mean_grid(group, m, "matrix") for m in group.methods}
    return _grids(group, grids, x="accuracy on task", y="after task", colors="accuracy, %", top=100.0)


def drift_cosines(group: Group) -> dict[str, Any]:
    """Histograms of the cosine between the estimated and the true move of each old prototype."""
    series = [
        {"method": m, "label": _label(group, m), "y": [c for s in group.scores(m) for c in s.drift_cosines]}
        for m in group.methods
    ]
    return {"kind": "histograms", "x": "cosine of estimated and true drift (line: mean)", "series": series}


def cost(group: Group) -> dict[str, Any]:
    """Milliseconds per test image, a bar per method."""
    series = [_series(group, m, "ms_per_image") for m in group.methods]
    return {"kind": "rows", "x": "ms per test image", "series": series}


def mean_grid(group: Group, method: str, field: str) -> Grid:
    """[row][column] averaged over seeds, None where no seed has a number. Rows may end early."""
    together = itertools.zip_longest(*(getattr(score, field) for score in group.scores(method)), fillvalue=())
    cells = [[spread(values) for values in itertools.zip_longest(*rows)] for rows in together]
    return tuple(tuple(cell.mean if cell else None for cell in row) for row in cells)


def row_percent(counts: Grid) -> Grid:
    """Counts to per cent of each row; None in a row without images."""
    pairs = [(row, sum(filter(None, row))) for row in counts]
    return tuple(
        tuple(100 * n / total if n is not None and total > 0 else None for n in row) for row, total in pairs
    )


def _grids(group: Group, grids: dict[str, Grid], **axes: Any) -> dict[str, Any]:
    known = [m for m, grid in grids.items() if any(v is not None for row in grid for v in row)]
    chosen = group.leading(known, MOST_GRIDS)
    return {"kind": "grids", "panels": [{"title": _label(group, m), "rows": grids[m]} for m in chosen]} | axes


def _series(group: Group, method: str, *fields: str, **more: Any) -> dict:
    """Of each field of Score the mean and deviation over the runs."""
    values = [[getattr(score, field) for score in group.scores(method)] for field in fields]
    return plots.series(method, _label(group, method), values, **more)


def _label(group: Group, method: str) -> str:
    return style.short(method) + group.mark(method)
