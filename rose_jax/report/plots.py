"""Draws figures from plain data, one function per kind. A study stores such data in its file; the report draws it.

    {"kind": "lines", "x", "y", "log_x", "panels": [{"title", "y", "series": [SERIES with "x"]}]}
    {"kind": "bars", "y", "digits", "groups": [text], "series": [SERIES]}
    {"kind": "rows", "x", "series": [SERIES with one value]}
    {"kind": "histograms", "x", "series": [SERIES without spread]}
    {"kind": "dots", "x", "groups": [text], "series": [SERIES]}
    {"kind": "paths", ...}: see paths.py
    {"kind": "grids", "x", "y", "colors", "top", "panels": [{"title", "rows": [[number | None]]}]}

A panel's own "y" takes the place of the figure's, and its axis a range of its own.
SERIES: {"method", "label", "y": [number | None], "std": [...], "x": [...], "variant": 0, "paper": False}. The method
gives the colour; variants of one method differ in dash and marker. No figure has a title in it: a paper's are in their
captions, and so are the page's.
"""

import contextlib
import itertools
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from rose_jax.report import paths, style
from rose_jax.report.compare import spread
from rose_jax.report.runs import Number, finite, one_line

Data = Mapping[str, Any]

LEGEND_LINE = 0.22  # inches
LEAST_RANGE = 2.0  # points of accuracy that the y axis of a line plot spans at least
# Dash and marker of a method's variants; the first is the method's own look.
VARIANTS = (None, ("-.", "<"), (":", "X"), ("--", "P"), ("-.", "d"))


def series(
    method: str, label: str, values: Iterable[Sequence[Number]], x: Sequence[Any] = (), **more: Any
) -> dict:
    """A SERIES of means and deviations: values[i] are what several draws or seeds gave at x[i]."""
    found = [spread(draws) for draws in values]
    means, deviations = [f.mean if f else None for f in found], [f.std if f else None for f in found]
    return {"method": method, "label": label, "x": list(x), "y": means, "std": deviations} | more


def by_stage(method: str, label: str, runs: Iterable[Sequence[Number]], **more: Any) -> dict:
    """A SERIES of accuracies after each task: runs[i][t] is that of the i-th draw or seed after task t."""
    columns = list(itertools.zip_longest(*runs))
    line = series(method, label, columns, range(1, len(columns) + 1), **more)
    known = [y for y in line["y"] if y is not None]
    return line | ({"label": f"{label}  {known[-1]:.1f}"} if known else {})


def stage_lines(*lines: Data) -> dict[str, Any]:
    """The data of a figure with one panel, which shows accuracies after each task."""
    return {"kind": "lines", "x": "tasks learned", "y": "accuracy, %", "panels": [{"series": list(lines)}]}


def log_lines(x: str, lines: Sequence[Data]) -> dict[str, Any]:
    """The data of a figure with one panel, which shows last accuracies against something that grows by factors."""
    return {"kind": "lines", "x": x, "y": "last accuracy, %", "log_x": True, "panels": [{"series": lines}]}


class Painted(NamedTuple):
    """A figure in all its forms."""

    light: bytes  # PNG, as `dark`
    dark: bytes
    pdf: bytes
    svg: bytes


def paint(data: Data, name: str) -> Painted | None:
    """None if there is nothing to draw. name: for the log."""
    forms: dict[str, bytes] = {}
    for theme in ("light", "dark"):
        with _drawing(theme):
            figure = draw(data, name)
            if figure is None:
                return None
            forms[theme] = style.png(figure)
            if theme == "light":
                forms |= {kind: style.vector(figure, kind) for kind in ("pdf", "svg")}
    return Painted(**forms)


def png(data: Data, name: str, theme: str) -> bytes | None:
    """The figure under a theme, "light" or "dark", as PNG; None if there is nothing to draw."""
    with _drawing(theme):
        figure = draw(data, name)
        return None if figure is None else style.png(figure)


@contextlib.contextmanager
def _drawing(theme: str) -> Iterator[None]:
    with matplotlib.rc_context(style.theme(theme)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        yield


def draw(data: Data, name: str = "") -> Figure | None:
    """The figure that `data` describes; None if there is nothing to draw, or, since data from a file may be anything,
    if it cannot be drawn: a report without one figure is better than none."""
    try:
        return _KINDS[data["kind"]](data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        logging.getLogger(__name__).warning("no figure %r: %r", name, error)
        return None


def _lines(data: Data) -> Figure | None:
    """Panels one below the other, each with its lines and, over several draws, a band of one deviation."""
    panels = [p for p in data["panels"] if any(np.isfinite(_column(one["y"])).any() for one in p["series"])]
    if not panels:
        return None
    longest = max(len(_label(one)) for panel in panels for one in panel["series"])
    # Room for the legend, which lists every line beside its panel.
    width, height = 7.8 if longest > 24 else 6.6, 3.9 if len(panels) == 1 else 3.1
    heights = [max(height, LEGEND_LINE * (len(panel["series"]) + 1)) for panel in panels]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    alike = not any("y" in panel for panel in panels)
    grid = figure.subplots(len(panels), 1, sharey=alike, squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        _line_panel(axes, panel["series"], bool(data.get("log_x")), LEAST_RANGE if alike else 0.0)
        axes.set(xlabel=one_line(data["x"]), ylabel=one_line(panel.get("y", data.get("y", ""))))
        axes.set_title(one_line(panel.get("title", "")))
    return figure


def _line_panel(axes: Axes, series: Sequence[Data], log_x: bool, least_range: float) -> None:
    drawn = []
    for one in series:
        x, (y, reach) = _column(one["x"]), _values(one)
        known = np.isfinite(x) & np.isfinite(y)
        if known.any():
            drawn.append((one, x[known], y[known], reach[known]))
    drawn.sort(key=lambda row: -row[2][-1])  # the legend lists the lines in the order of their right ends
    for order, (one, x, y, reach) in enumerate(drawn):
        look = style.look(one["method"])
        variant = int(one.get("variant", 0)) % len(VARIANTS)
        dash, marker = VARIANTS[variant] or (look.dash, look.marker)
        color, width = look.color, 1.4 if variant else look.width
        if one.get("paper"):
            color, dash, marker, width = _ink(axes), ":", ".", 1.2
        hollow = axes.get_facecolor() if variant else None
        # A variant is drawn thinner and above the method's own line, since the two often coincide.
        above = (20 if look.stands_out else 10 - order / 100) + variant / 10
        (line,) = axes.plot(x, y, color=color, linestyle=dash, marker=marker, linewidth=width, zorder=above)
        line.set(label=_label(one), markerfacecolor=hollow or color)
        if reach.any():
            axes.fill_between(x, y - reach, y + reach, color=look.color, alpha=0.18, linewidth=0)
    if log_x:
        axes.set_xscale("log")
        ticks = sorted({float(v) for _, x, _, _ in drawn for v in x})
        axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    low, high = axes.get_ylim()
    room = max(0.0, least_range - (high - low)) / 2  # so that tiny differences do not fill the whole height
    axes.set_ylim(max(0.0, low - room), high + room)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=2.6)


def _bars(data: Data) -> Figure | None:
    """Groups of vertical bars, in each group one bar per series with its value above."""
    series, groups = data["series"], [one_line(g) for g in data["groups"]]
    if not series or not groups:
        return None
    figure, axes = _one_panel(3.6)
    axes.margins(y=0.12)
    width, digits = 0.84 / len(series), int(data.get("digits", 1))
    for position, one in enumerate(series):
        x = np.arange(len(groups)) + (position - (len(series) - 1) / 2) * width
        values, reaches = _values(one)
        drawn = axes.bar(x, values, 0.92 * width, label=_label(one), yerr=reaches, **_fill(axes, one))
        axes.bar_label(drawn, fmt=f"%.{digits}f", padding=3, fontsize=9)
    axes.axhline(0, color=axes.spines["bottom"].get_edgecolor(), linewidth=0.8)
    _names(axes.xaxis, range(len(groups)), groups)
    axes.set(ylabel=one_line(data["y"]))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _rows(data: Data) -> Figure | None:
    """A horizontal bar per series, the first on top."""
    series = [one for one in data["series"] if finite(one["y"][0]) is not None]
    if not series:
        return None
    figure, axes = _one_panel(1.2 + 0.34 * len(series))
    ends = []
    for level, one in enumerate(series):
        (value, *_), (reach, *_) = _values(one)
        drawn = axes.barh(level, value, height=0.68, xerr=reach, **_fill(axes, one))
        axes.bar_label(drawn, fmt="%.3g", padding=4, fontsize=10)
        ends.append(value + reach)
    _names(axes.yaxis, range(len(series)), [_label(one) for one in series])
    axes.invert_yaxis()
    axes.set(xlabel=one_line(data["x"]), xlim=(0, max(ends) * 1.14 or 1))
    return figure


def _dots(data: Data) -> Figure | None:
    """A line of dots per group, one for each series, the first group on top."""
    series, groups = data["series"], [style.short(one_line(g)) for g in data["groups"]]
    if not series or not groups:
        return None
    figure, axes = _one_panel(1.3 + 0.22 * len(groups))
    levels = np.arange(len(groups))
    for one in series:
        look = style.look(one["method"])
        size, above = (7.0, 4) if look.stands_out else (5.5, 3)
        dots = axes.plot(_values(one)[0], levels, look.marker, color=look.color, markersize=size, zorder=above)
        dots[0].set(label=_label(one), alpha=0.9)
    axes.set_yticks(levels, groups)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.03)
    axes.set(xlabel=one_line(data["x"]), ylim=(len(groups) - 0.4, -0.6))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _histograms(data: Data) -> Figure | None:
    """One histogram above the other, scaled to the same height, the best mean on top; a line marks the mean."""
    samples = [(one, _column(one["y"])) for one in data["series"]]
    samples = [(one, values[np.isfinite(values)]) for one, values in samples]
    samples = sorted(((one, v) for one, v in samples if v.size), key=lambda row: row[1].mean())
    if not samples:
        return None
    lowest = min(values.min() for _, values in samples)
    edges = np.linspace(max(-1.0, math.floor(lowest * 20) / 20), 1.0, 51)
    figure, axes = _one_panel(1.2 + max(0.42, 0.9 - 0.1 * len(samples)) * len(samples))
    for level, (one, values) in enumerate(samples):
        count, _ = np.histogram(np.clip(values, edges[0], 1.0), edges)
        color = style.look(one["method"]).color
        axes.stairs(level + 0.92 * count / count.max(), edges, baseline=level, fill=True, color=color)
        axes.plot([values.mean()] * 2, [level, level + 0.92], color=_ink(axes), linewidth=1.2)
    names = [f"{_label(one)}  {values.mean():.3f}" for one, values in samples]
    _names(axes.yaxis, np.arange(len(samples)) + 0.3, names)
    axes.set(xlabel=one_line(data["x"]), xlim=(edges[0], 1.0), ylim=(0, len(samples)))
    return figure


def _grids(data: Data) -> Figure | None:
    """Heat maps of task-by-task grids, two side by side, all on one colour scale."""
    # A ragged row is filled up with NaN.
    panels = [(p["title"], np.array(list(itertools.zip_longest(*p["rows"])), float).T) for p in data["panels"]]
    if not panels:
        return None
    top = data.get("top") or max(float(np.nanmax(values)) for _, values in panels) or 1.0
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(1.2 + 2.7 * columns, 0.6 + 2.55 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (name, values) in zip(grid.flat, panels, strict=False):
        image = _heat_map(axes, values, top)
        axes.set_title(one_line(name))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(one_line(data["y"]))
    for column in range(columns):
        grid[(len(panels) - 1 - column) // columns, column].set_xlabel(one_line(data["x"]))
    figure.colorbar(image, ax=grid, label=one_line(data["colors"]), shrink=0.9 if rows == 1 else 0.5, pad=0.02)
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


def _one_panel(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.6, height), layout="constrained")
    axes = figure.subplots()
    return figure, axes


def _names(axis: Any, at: Iterable[float], names: Sequence[str]) -> None:
    """Names in place of numbers along an axis."""
    axis.set_ticks(at, names)
    axis.set_tick_params(length=0)
    axis.grid(False)


def _fill(axes: Axes, one: Data) -> dict[str, Any]:
    """How a bar is drawn: variants of a method are hatched, the paper's numbers are only outlined."""
    color, error = style.look(one["method"]).color, {"ecolor": _ink(axes), "error_kw": {"elinewidth": 1.2}}
    if one.get("paper"):
        return {"facecolor": "none", "edgecolor": color, "linewidth": 1.4, "linestyle": ":"} | error
    hatch = (None, "//", "..", "xx")[int(one.get("variant", 0)) % 4]
    return {"facecolor": color, "edgecolor": "#ffffff", "hatch": hatch, "linewidth": 0.0} | error


def _ink(axes: Axes) -> Any:
    """The theme's colour of text."""
    return axes.xaxis.label.get_color()


def _label(one: Data) -> str:
    """A label with a leading underscore, which matplotlib would leave out of the legend, gets a space before it."""
    text = style.short(one_line(one["label"]), 40)
    return f" {text}" if text.startswith("_") else text


def _values(one: Data) -> tuple[np.ndarray, np.ndarray]:
    """The values of a series, NaN where there is none, and their deviations, 0 where there is none."""
    values = _column(one["y"])
    return values, np.nan_to_num(_column(one.get("std") or [None] * len(values)))


def _column(values: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if finite(v) is None else float(v) for v in values], float)


_KINDS = {
    "lines": _lines,
    "bars": _bars,
    "rows": _rows,
    "dots": _dots,
    "histograms": _histograms,
    "grids": _grids,
    "paths": paths.draw,
}
