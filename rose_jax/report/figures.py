"""The pictures of a report. Each function draws one, or returns None if the run has nothing to draw."""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rose_jax.report import plots, studies, style
from rose_jax.report.compare import Group, spread
from rose_jax.report.heatmaps import confusion, matrix

MOST_CURVE_PANELS = 6


@dataclass(frozen=True)
class Picture:
    """One figure as PNG, on a light and on a dark background."""

    light: bytes
    dark: bytes


def draw(groups: Sequence[Group], names: Sequence[str] | None = None) -> dict[str, Picture]:
    """Every figure (or those in `names`) that the runs support; all but the curves are of the first group.

    A study has its own under its name.
    """
    makers: dict[str, Callable[[], Figure | None]] = {
        "curves": lambda: curves(groups),
        "confusion": lambda: confusion(groups[0]),
        "matrix": lambda: matrix(groups[0]),
        "drift_cosines": lambda: drift(groups[0]),
        "cost": lambda: cost(groups[0]),
    }
    for study in (study for study in studies.of(groups[0]) if study.figure is not None):
        makers[study.name] = functools.partial(study.draw, groups[0].title)
    wanted = {name: make for name, make in makers.items() if names is None or name in names}
    drawn = {name: (_png(make, "light"), _png(make, "dark")) for name, make in wanted.items()}
    return {name: Picture(light, dark) for name, (light, dark) in drawn.items() if light and dark}


def curves(groups: Sequence[Group]) -> Figure | None:
    """Accuracy over all seen classes after each task; a band of one deviation over several seeds."""
    groups = [g for g in groups if any(_steps(g, m) for m in g.methods)][:MOST_CURVE_PANELS]
    if not groups:
        return None
    figure = Figure(figsize=(6.6, 3.9 if len(groups) == 1 else 3.1 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), 1, sharey=True, squeeze=False)[:, 0]
    for axes, group in zip(panels, groups, strict=True):
        _curve_panel(axes, group)
    return figure


def drift(group: Group) -> Figure | None:
    """Histograms of the cosine between the estimated and the true move of each old prototype, best on top."""
    series = [
        {"method": m, "label": group.label(m), "y": [c for s in group.scores(m) for c in s.drift_cosines]}
        for m in group.methods
    ]
    data = {"x": "cosine of estimated and true drift (line: mean)", "series": series}
    return plots.histograms(data, style.title(group.title, "drift of the old prototypes"))


def cost(group: Group) -> Figure | None:
    """Milliseconds per test image, a bar per method."""
    times = {m: spread([s.ms_per_image for s in group.scores(m)]) for m in group.methods}
    bars = {m: t.mean for m, t in times.items() if t is not None}
    if not bars:
        return None
    names, values = list(bars), list(bars.values())
    figure = Figure(figsize=(6.6, 1.2 + 0.34 * len(bars)), layout="constrained")
    axes = figure.subplots()
    drawn = axes.barh(range(len(bars)), values, color=[style.look(m).color for m in names], height=0.68)
    axes.bar_label(drawn, labels=[f"{v:.3g}" for v in values], padding=4, fontsize=10)
    axes.set_yticks(range(len(bars)), [group.label(m) for m in names])
    axes.invert_yaxis()  # the first method on top, as in the tables
    axes.set(xlabel="ms per test image", xlim=(0, max(values) * 1.14 or 1))
    axes.set_title(style.title(group.title, "cost at test time"))
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure


def _curve_panel(axes: Axes, group: Group) -> None:
    lines = [(m, _steps(group, m)) for m in group.methods]
    lines = [(m, steps) for m, steps in lines if steps]
    lines.sort(key=lambda line: -line[1][-1][1])  # the legend reads like the right edge of the figure
    for order, (name, steps) in enumerate(lines):
        look = style.look(name)
        stage, mean, std = (np.array(column) for column in zip(*steps, strict=True))
        axes.plot(
            stage,
            mean,
            color=look.color,
            linestyle=look.dash,
            marker=look.marker,
            linewidth=look.width,
            label=style.legend_label(f"{group.label(name)}  {mean[-1]:.1f}"),
            zorder=20 if look.stands_out else 10 - order / 100,
        )
        if np.any(std > 0):
            axes.fill_between(stage, mean - std, mean + std, color=look.color, alpha=0.18, linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy, %")
    axes.set_title(style.title(group.title, "accuracy after each task"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=2.6)


def _steps(group: Group, method: str) -> list[tuple[int, float, float]]:
    """(tasks learned, mean, deviation) of every stage that has a number."""
    scores = group.scores(method)
    steps = []
    for t in range(max((len(s.per_stage) for s in scores), default=0)):
        value = spread([s.per_stage[t] for s in scores if t < len(s.per_stage)])
        if value is not None:
            steps.append((t + 1, value.mean, value.std or 0.0))
    return steps


def light(make: Callable[[], Figure | None]) -> bytes | None:
    """One figure on a light background, for a file of its own."""
    return _png(make, "light")


def _png(make: Callable[[], Figure | None], theme: str) -> bytes | None:
    with matplotlib.rc_context(style.theme(theme)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script the font lacks
        figure = make()
        return None if figure is None else style.png(figure)
