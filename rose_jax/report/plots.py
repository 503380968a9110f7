"""Draws figures from plain data, one function per kind. A study stores such data in its file; the report draws it.

    {"kind": "lines", "x", "y", "log_x", "panels": [{"title", "series": [SERIES with "x"]}]}
    {"kind": "bars", "y", "digits", "groups": [text], "series": [SERIES]}
    {"kind": "rows", "x", "series": [SERIES with one value]}
    {"kind": "histograms", "x", "series": [SERIES without spread]}

SERIES: {"method", "label", "y": [number | None], "std": [...], "x": [...], "variant": 0, "paper": False}. The method
gives the colour; variants of one method differ in dash and marker.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from rose_jax.report import style
from rose_jax.report.compare import spread
from rose_jax.report.runs import Number, finite, one_line

Data = Mapping[str, Any]

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


def draw(data: Data, title: str) -> Figure | None:
    """The figure that `data` describes. The data comes from a file and may be anything: None if it cannot be drawn."""
    try:
        return _KINDS[data["kind"]](data, title)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def lines(data: Data, title: str) -> Figure | None:
    """Panels one below the other, each with its lines and, over several draws, a band of one deviation."""
    panels = [p for p in data["panels"] if any(np.isfinite(_column(one["y"])).any() for one in p["series"])]
    if not panels:
        return None
    figure = Figure(figsize=(6.6, 3.9 if len(panels) == 1 else 3.1 * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        _line_panel(axes, panel["series"], bool(data.get("log_x")))
        axes.set(xlabel=one_line(data["x"]), ylabel=one_line(data["y"]))
        axes.set_title(", ".join(filter(None, (title, one_line(panel.get("title", ""))))))
    return figure


def bars(data: Data, title: str) -> Figure | None:
    """Groups of vertical bars, in each group one bar per series with its value above."""
    series, groups = data["series"], [one_line(g) for g in data["groups"]]
    if not series or not groups:
        return None
    figure = Figure(figsize=(6.6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.margins(y=0.12)
    width, digits = 0.84 / len(series), int(data.get("digits", 1))
    for position, one in enumerate(series):
        values, std = _column(one["y"]), _column(one.get("std") or [None] * len(groups))
        x = np.arange(len(groups)) + (position - (len(series) - 1) / 2) * width
        axes.bar(x, values, 0.92 * width, label=_label(one), **_fill(one))
        ink = axes.xaxis.label.get_color()
        for at, value, reach in zip(x, values, np.nan_to_num(std), strict=True):
            if np.isfinite(value):
                axes.errorbar(at, value, reach or None, fmt="none", ecolor=ink, elinewidth=1.2)
                up = value >= 0
                text = axes.annotate(
                    f"{value:.{digits}f}",
                    (at, value + reach if up else value - reach),
                    xytext=(0, 3 if up else -3),
                    textcoords="offset points",
                )
                text.set(ha="center", va="bottom" if up else "top", fontsize=9)
    axes.axhline(0, color=axes.spines["bottom"].get_edgecolor(), linewidth=0.8)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")
    axes.set(ylabel=one_line(data["y"]))
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def rows(data: Data, title: str) -> Figure | None:
    """A horizontal bar per series, the first on top."""
    series = [one for one in data["series"] if finite(one["y"][0]) is not None]
    if not series:
        return None
    values = np.array([one["y"][0] for one in series], float)
    reaches = np.nan_to_num([_column(one.get("std") or [None])[0] for one in series])
    figure = Figure(figsize=(6.6, 1.2 + 0.34 * len(series)), layout="constrained")
    axes = figure.subplots()
    ink = axes.xaxis.label.get_color()
    for level, (one, value, reach) in enumerate(zip(series, values, reaches, strict=True)):
        axes.barh(level, value, height=0.68, **_fill(one))
        axes.errorbar(value, level, xerr=reach or None, fmt="none", ecolor=ink, elinewidth=1.2)
        text = axes.annotate(f"{value:.3g}", (value + reach, level), xytext=(4, 0), textcoords="offset points")
        text.set(va="center", fontsize=10)
    axes.set_yticks(range(len(series)), [_label(one) for one in series])
    axes.invert_yaxis()
    axes.set(xlabel=one_line(data["x"]), xlim=(0, (values + reaches).max() * 1.14 or 1))
    axes.set_title(title)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure


def histograms(data: Data, title: str) -> Figure | None:
    """One histogram above the other, scaled to the same height, the best mean on top; a line marks the mean."""
    samples = [(one, _column(one["y"])) for one in data["series"]]
    samples = [(one, values[np.isfinite(values)]) for one, values in samples]
    samples = sorted(((one, v) for one, v in samples if v.size), key=lambda row: row[1].mean())
    if not samples:
        return None
    lowest = min(values.min() for _, values in samples)
    edges = np.linspace(max(-1.0, math.floor(lowest * 20) / 20), 1.0, 51)
    counts = [np.histogram(np.clip(values, edges[0], 1.0), edges)[0] for _, values in samples]
    height = 1.2 + max(0.42, 0.9 - 0.1 * len(samples)) * len(samples)
    figure = Figure(figsize=(6.6, height), layout="constrained")
    axes = figure.subplots()
    for level, ((one, values), count) in enumerate(zip(samples, counts, strict=True)):
        color = style.look(one["method"]).color
        axes.stairs(level + 0.92 * count / count.max(), edges, baseline=level, fill=True, color=color)
        axes.plot([values.mean()] * 2, [level, level + 0.92], color=axes.xaxis.label.get_color(), linewidth=1.2)
    names = [f"{_label(one)}  {values.mean():.3f}" for one, values in samples]
    axes.set_yticks(np.arange(len(samples)) + 0.3, names)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set(xlabel=one_line(data["x"]), xlim=(edges[0], 1.0), ylim=(0, len(samples)))
    axes.set_title(title)
    return figure


def _line_panel(axes: Axes, series: Sequence[Data], log_x: bool) -> None:
    drawn = []
    for one in series:
        x, y = _column(one["x"]), _column(one["y"])
        std = _column(one.get("std") or [None] * len(y))
        known = np.isfinite(x) & np.isfinite(y)
        if known.any():
            drawn.append((one, x[known], y[known], std[known]))
    drawn.sort(key=lambda row: -row[2][-1])  # the legend lists the lines in the order of their right ends
    for order, (one, x, y, std) in enumerate(drawn):
        look = style.look(one["method"])
        variant = int(one.get("variant", 0)) % len(VARIANTS)
        dash, marker = VARIANTS[variant] or (look.dash, look.marker)
        ink = axes.xaxis.label.get_color()
        printed = bool(one.get("paper"))
        axes.plot(
            x,
            y,
            color=ink if printed else look.color,
            linestyle=":" if printed else dash,
            marker="." if printed else marker,
            linewidth=1.2 if printed else 1.4 if variant else look.width,
            markerfacecolor=axes.get_facecolor() if variant else None,
            label=_label(one),
            # A variant is drawn thinner and above the method's own line, since the two often coincide.
            zorder=(20 if look.stands_out else 10 - order / 100) + variant / 10,
        )
        if np.any(std > 0):
            band = np.nan_to_num(std)
            axes.fill_between(x, y - band, y + band, color=look.color, alpha=0.18, linewidth=0)
    if log_x:
        axes.set_xscale("log")
        ticks = sorted({float(v) for _, x, _, _ in drawn for v in x})
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    low, high = axes.get_ylim()
    room = max(0.0, LEAST_RANGE - (high - low)) / 2  # so that tiny differences do not fill the whole height
    axes.set_ylim(max(0.0, low - room), high + room)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=2.6)


def _fill(one: Data) -> dict[str, Any]:
    """How a bar is filled: variants of a method are hatched, the paper's numbers are only outlined."""
    look = style.look(one["method"])
    if one.get("paper"):
        return {"facecolor": "none", "edgecolor": look.color, "linewidth": 1.4, "linestyle": ":"}
    hatch = (None, "//", "..", "xx")[int(one.get("variant", 0)) % 4]
    return {"facecolor": look.color, "edgecolor": "#ffffff", "hatch": hatch, "linewidth": 0.0}


def _label(one: Data) -> str:
    return style.legend_label(style.short(one_line(one["label"]), 34))


def _column(values: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if finite(v) is None else float(v) for v in values], float)


_KINDS: dict[str, Callable[[Data, str], Figure | None]] = {
    "lines": lines,
    "bars": bars,
    "rows": rows,
    "histograms": histograms,
}
