"""What the report's own figures show, as plain data for plots.py, which draws nothing where the runs have no numbers."""

import itertools
from collections.abc import Sequence
from typing import Any

from rose_jax.report import compare, plots, style
from rose_jax.report.compare import Group, spread
from rose_jax.report.runs import Grid

MOST_CURVES = 10  # of several runs in one axis
MOST_CLASSES = 30
MOST_BARS = 6  # methods whose bars are still wide enough for a number above each
MOST_GRIDS = 4
PAPER_OLD_NEW = (
    "base",
    "projector",
    "ldc",
    "fcs",
    "rose",
)  # rows of its Figure 4: ldc after a cold start, fcs warm

PATHS_OF = {  # what becomes of old prototypes
    "base": "prototypes stay in place",
    "projector": "moved once, by a trained map",
    "rose": "moved with every test image",
}


def curves(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy over all seen classes after each task; a band of one deviation over several seeds.

    Several groups lie in one axis: colours are methods, dashes and markers are groups, which are named by what differs.
    Of each only its leading methods are drawn, if all would be too many.
    """
    lines, most = [], max(MOST_CURVES // len(groups), 1)
    for number, (group, name) in enumerate(zip(groups, compare.distinct_names(groups), strict=True)):
        chosen = group.methods if len(groups) == 1 else group.leading(group.methods, most)
        for method in chosen:
            label = _label(group, method) + (f", {style.short(name, 30)}" if len(groups) > 1 else "")
            lines.append(
                plots.by_stage(method, label, [s.per_stage for s in group.scores(method)], variant=number)
            )
    return plots.stage_lines(*lines)


def per_class(group: Group) -> dict[str, Any]:
    """Last accuracy on every class, a dot per method; of many classes those in which the methods differ most."""
    names = group.runs[0].class_names
    known = [m for m in group.methods if all(len(s.per_class) == len(names) for s in group.scores(m))]
    chosen = group.leading(known, MOST_GRIDS) if names else []
    values = {m: _means(group, m, len(names)) for m in chosen}

    def range_of(c: int) -> float:
        found = [value for value in (v[c] for v in values.values()) if value is not None]
        return max(found, default=0.0) - min(found, default=0.0)

    kept = sorted(sorted(range(len(names)), key=range_of, reverse=True)[:MOST_CLASSES])
    series = [{"method": m, "label": _label(group, m), "y": [v[c] for c in kept]} for m, v in values.items()]
    return {"kind": "dots", "x": "last accuracy, %", "groups": [names[c] for c in kept], "series": series}


def _means(group: Group, method: str, classes: int) -> list[float | None]:
    """[class] last accuracy, averaged over seeds."""
    found = [spread(score.per_class[c] for score in group.scores(method)) for c in range(classes)]
    return [one.mean if one else None for one in found]


def old_new(group: Group) -> dict[str, Any]:
    """Last accuracy on old and on new classes, as in the paper's Figure 4; bars of one method would compare nothing."""
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


def paths(group: Group) -> dict[str, Any]:
    """Where the old prototypes went in the last stage, among its test features: of the first run that knows it."""
    for run in group.runs:
        plane = run.planes.get("base")
        known = [run.scores[m] for m in PATHS_OF if m in run.scores]
        rows = [s for s in known if plane and s.path and s.encoders == plane.encoders]
        rows = [s for s in rows if plane and all(len(moment) == len(plane.classes) for moment in s.path)]
        if plane and rows:
            names, seed = run.class_names, f", seed {run.seed}" if len(group.runs) > 1 else ""
            return {
                "kind": "paths",
                "classes": [names[c] if c < len(names) else str(c) for c in plane.classes],
                "true_means": plane.true_means,
                "points": plane.points,
                # Of a class that is new, or that is not shown, no path is drawn.
                "labels": [plane.classes.index(c) if c in plane.classes else -1 for c in plane.labels],
                "panels": [
                    {
                        "method": s.name,
                        "title": _with_number(_label(group, s.name), s.last) + seed,
                        "does": PATHS_OF[s.name],
                        "path": s.path,
                    }
                    for s in rows
                ],
            }
    return {"kind": "paths", "panels": []}


def _with_number(label: str, accuracy: float | None) -> str:
    return label if accuracy is None else f"{label}  {accuracy:.1f} %"


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
