"""Draws prototypes on their way through a plane of features, a panel for each method."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rose_jax.report import style
from rose_jax.report.runs import one_line

WIDTH = 8.0  # inches of three panels: 800 pixels of a README leave each label readable
MARGIN = 0.06  # around what is shown, of its extent
MISSED: Any = (0, (1, 1.2))  # the dots of the line from where a prototype ends to where it should


def draw(data: Mapping[str, Any]) -> Figure | None:
    """{"classes": [name], "true_means": [[x, y]], "points": [[x, y]], "labels": [class or -1], "panels": [{"title",
    "does", "path": [moment][class][x, y]}]}; None without a panel."""
    panels = data["panels"]
    if not panels:
        return None
    names = [style.short(one_line(name), 14) for name in data["classes"]]
    truth, points = (np.array(data[key], float).reshape(-1, 2) for key in ("true_means", "points"))
    labels, paths = np.array(data["labels"], int), [np.array(panel["path"], float) for panel in panels]
    figure = Figure(figsize=(0.3 + (WIDTH - 0.3) / 3 * len(panels), 3.4), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    for axes, panel, path in zip(grid, panels, paths, strict=True):
        _cloud(axes, points, labels)
        for number, name in enumerate(names):
            _way(axes, path[:, number], truth[number], name, style.class_color(number))
        axes.set_title(f"{one_line(panel['title'])}\n{one_line(panel['does'])}", fontsize=11)
        axes.set(xticks=[], yticks=[])
        axes.spines[["top", "right"]].set_visible(True)
    _frame(grid[0], [points, truth, *(path.reshape(-1, 2) for path in paths)])
    figure.legend(
        handles=_legend(grid[0]),
        loc="outside lower center",
        ncols=6,
        fontsize=10,
        handletextpad=0.3,
        columnspacing=1.1,
    )
    return figure


def _cloud(axes: Axes, points: np.ndarray, labels: np.ndarray) -> None:
    for number in np.unique(labels):
        color = style.NEW_CLASS if number < 0 else style.class_color(number)
        x, y = points[labels == number].T
        axes.scatter(x, y, s=9, color=color, alpha=0.35, linewidths=0, zorder=1)


def _way(axes: Axes, path: np.ndarray, truth: np.ndarray, name: str, color: str) -> None:
    """One prototype's path [moments, 2] and the place where it should end."""
    ink, paper = axes.xaxis.label.get_color(), axes.get_facecolor()
    axes.plot(*np.stack([path[-1], truth]).T, color=ink, linewidth=1.2, linestyle=MISSED, zorder=3)
    axes.plot(*path.T, color=ink, linewidth=2.0, zorder=3, solid_capstyle="round")
    axes.plot(*path.T, color=color, linewidth=1.1, zorder=4, solid_capstyle="round")
    axes.plot(*path[:1].T, "o", color=ink, markerfacecolor=paper, markersize=7, markeredgewidth=1.2, zorder=5)
    # Larger than the disc, so that its arms show where a prototype ends at its place.
    axes.plot(*truth, "X", color=color, markersize=12, markeredgecolor=ink, markeredgewidth=0.9, zorder=6)
    axes.plot(*path[-1:].T, "o", color=color, markersize=9, markeredgecolor=ink, markeredgewidth=0.9, zorder=7)
    text = axes.annotate(name, path[-1], ha="center", va="center", fontsize=8, fontweight="bold", zorder=8)
    text.set(color=style.ink_on(color))


def _frame(axes: Axes, shown: Sequence[np.ndarray]) -> None:
    """Axes that hold everything but the farthest hundredth of the points."""
    cloud, others = shown[0], np.concatenate(shown[1:])
    low = np.minimum(np.percentile(cloud, 1, axis=0), others.min(0))
    high = np.maximum(np.percentile(cloud, 99, axis=0), others.max(0))
    room = MARGIN * (high - low) + 1e-9
    axes.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))


def _legend(axes: Axes) -> list[Line2D]:
    ink, paper = axes.xaxis.label.get_color(), axes.get_facecolor()
    grey = style.NEW_CLASS
    alone: dict[str, Any] = {"linestyle": "none", "markeredgecolor": ink}
    return [
        Line2D([], [], marker="o", color=grey, markersize=4, linestyle="none", label="test image"),
        Line2D([], [], marker="o", color=paper, markersize=7, label="prototype before", **alone),
        Line2D([], [], color=grey, linewidth=1.6, label="its path"),
        Line2D([], [], marker="o", color=grey, markersize=9, label="after", **alone),
        Line2D([], [], color=ink, linewidth=1.2, linestyle=MISSED, label="remaining error"),
        Line2D([], [], marker="X", color=grey, markersize=11, label="true mean", **alone),
    ]
