"""Figures of task-by-task grids: one heat map per method, all on one colour scale."""

import math
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from rose_jax.report import style
from rose_jax.report.compare import Group
from rose_jax.report.runs import Grid

MOST_PANELS = 4


def matrix(group: Group) -> Figure | None:
    """Accuracy on each task (column) after each stage (row)."""
    labels = ("accuracy matrix", "accuracy on task", "after task", "accuracy, %")
    return _panels(group, "matrix", labels, lambda accuracy: accuracy, top=100.0)


def confusion(group: Group) -> Figure | None:
    """Where the test images of each task (row) are placed after the last stage, in per cent of the row."""
    labels = ("confusion by task", "predicted task", "true task", "% of the true task")
    return _panels(group, "confusion", labels, row_percent)


def row_percent(counts: np.ndarray) -> np.ndarray:
    """[T, T] counts to per cent of each row; NaN in a row without images."""
    total = np.nansum(counts, axis=1, keepdims=True)
    return 100 * counts / np.where(total > 0, total, np.nan)


def mean_grid(group: Group, method: str, field: str) -> np.ndarray | None:
    """[rows, columns] averaged over seeds, NaN where no seed has a number; None without any."""
    grids = [array for score in group.scores(method) if (array := _array(getattr(score, field))) is not None]
    alike = np.array([array for array in grids if array.shape == grids[0].shape])  # [seeds, rows, columns]
    if not alike.size:
        return None
    known = np.isfinite(alike)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, alike, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def _panels(
    group: Group,
    field: str,
    labels: tuple[str, str, str, str],  # of the figure, x, y and the colours
    scale: Callable[[np.ndarray], np.ndarray],
    top: float | None = None,
) -> Figure | None:
    grids = {name: mean_grid(group, name, field) for name in group.methods}
    scaled = {name: scale(grid) for name, grid in grids.items() if grid is not None}
    scaled = {name: values for name, values in scaled.items() if np.any(np.isfinite(values))}
    if not scaled:
        return None
    chosen = group.leading(list(scaled), MOST_PANELS)
    top = top or max(float(np.nanmax(scaled[name])) for name in chosen) or 1.0
    columns = min(2, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = Figure(figsize=(1.2 + 2.7 * columns, 0.6 + 2.55 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, name in zip(grid.flat, chosen, strict=False):
        image = _heat_map(axes, scaled[name], top)
        axes.set_title(group.label(name))
    for axes in grid.flat[len(chosen) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(labels[2])
    for column in range(columns):
        grid[(len(chosen) - 1 - column) // columns, column].set_xlabel(labels[1])
    figure.colorbar(image, ax=grid, label=labels[3], shrink=0.9 if rows == 1 else 0.5, pad=0.02)
    figure.suptitle(style.title(group.title, labels[0]), x=0.01, ha="left", fontsize="medium")
    return figure


def _heat_map(axes: Axes, values: np.ndarray, top: float) -> AxesImage:
    height, width = values.shape
    extent = (0.5, width + 0.5, height + 0.5, 0.5)  # tasks count from one, as in the curves
    image = axes.imshow(values, style.SEQUENTIAL, vmin=0, vmax=top, extent=extent, interpolation="nearest")
    axes.grid(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    if max(values.shape) > 10:  # too small to read
        return image
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            bright = np.dot(image.cmap(image.norm(value))[:3], (0.299, 0.587, 0.114)) > 0.5
            text = axes.text(column + 1, row + 1, f"{value:.0f}", ha="center", va="center")
            text.set(color="black" if bright else "white", fontsize=9 if max(values.shape) <= 6 else 7.5)
            text.set_in_layout(False)  # it lies inside the axes, so that the layout need not measure it
    return image


def _array(grid: Grid) -> np.ndarray | None:
    """The grid with NaN for None and ragged rows filled up; None if it holds no number."""
    values = np.full((len(grid), max((len(row) for row in grid), default=0)), np.nan)
    for r, row in enumerate(grid):
        values[r, : len(row)] = [np.nan if v is None else v for v in row]
    return values if np.any(np.isfinite(values)) else None
