"""Figures: what they are drawn from, their size, and colours that everybody can tell apart."""

import io
import itertools
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from PIL import Image

from rose_jax.report import compare, content, figures, paper, plots, style
from rose_jax.report.runs import Run, Score, load

CORE = ("base", "projector", "gd", "rose")


TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # sRGB, D65


def linear(rgb):
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of one linear sRGB colour."""
    x, y, z = np.cbrt(TO_XYZ @ rgb / TO_XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def grouped(*workdirs):
    return compare.group([load(w) for w in workdirs])


def drawn(data, theme="light"):
    with matplotlib.rc_context(style.theme(theme)):
        return plots.draw(data, "title")


def test_every_figure_is_a_small_png(make_run):
    many = tuple(dict.fromkeys(cell.method for cell in paper.cells()))  # every method of the paper at once
    (group,) = grouped(make_run(methods=(*many, "one of ours"), tasks=10))
    pictures = [plots.png(data(group), "title", "light") for _, _, data in content.FIGURES.values()]
    for data in pictures:
        image = Image.open(io.BytesIO(data))
        assert image.format == "PNG"
        assert 750 <= image.width <= 1200
        assert len(data) < 60_000


def test_a_method_has_its_exact_colour_in_both_themes(make_run):
    data = figures.cost(grouped(make_run())[0])
    for theme in ("light", "dark"):
        picture = io.BytesIO(plots.png(data, "title", theme))
        pixels = np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)
        for method in CORE:
            color = np.round(255 * np.array(to_rgb(style.look(method).color)))
            assert np.any(np.all(pixels == color, axis=1)), method


def test_looks_are_distinct_and_stable():
    known = dict.fromkeys(cell.method for cell in paper.cells()) | dict.fromkeys((*CORE, "gd_queue", "dpcr"))
    looks = {name: style.look(name) for name in known}
    assert len({(look.color, look.dash, look.marker) for look in looks.values()}) == len(looks)
    for row in ("lwf+rose", "efc+rose", "rose_whitened", "lwf+rose_whitened", "rose_ridge", "lwf+rose_ridge"):
        assert style.look(row).color == style.look("rose").color
        assert style.look(row) != style.look("rose")
    assert style.look("rose_ridge") != style.look("rose_whitened")
    unknown = style.look("a method of next year")
    assert unknown == style.look("a method of next year")
    assert unknown not in looks.values()
    assert style.look("RoSE") == style.look("rose")


def test_core_colours_survive_colour_blindness():
    # Machado, Oliveira and Fernandes 2009, severity 1.0: protanopia, deuteranopia, tritanopia.
    matrices = [
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ]
    colors = linear(np.array([to_rgb(style.look(method).color) for method in CORE]))
    for matrix in matrices:
        seen = [lab(np.clip(np.array(matrix) @ color, 0, 1)) for color in colors]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20  # CIE 1976 delta E


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_stand_out_from_the_background(theme):
    def contrast(a, b):  # WCAG 2
        low, high = sorted(linear(np.array(to_rgb(color))) @ TO_XYZ[1] for color in (a, b))
        return (high + 0.05) / (low + 0.05)

    params = style.theme(theme)
    assert contrast(params["text.color"], params["figure.facecolor"]) > 7
    for method in dict.fromkeys(cell.method for cell in paper.cells()):
        assert contrast(style.look(method).color, params["figure.facecolor"]) > 2


def test_curves_show_the_mean_over_seeds(make_run):
    runs = [make_run(f"s{seed}", seed=seed) for seed in (0, 1)]
    figure = drawn(figures.curves(grouped(*runs)))
    lines = {line.get_label().split()[0]: line.get_ydata() for line in figure.axes[0].get_lines()}
    for method in CORE:
        np.testing.assert_allclose(
            lines[method], np.mean([load(w).scores[method].per_stage for w in runs], axis=0)
        )
    last = [line[-1] for line in lines.values()]
    assert last == sorted(last, reverse=True)  # legend in the order of the right edge


def test_the_legend_of_forty_rows_lies_inside_the_figure():
    lines = [plots.by_stage(f"row {i}", f"row {i}", [[90.0, 50.0 + i]]) for i in range(40)]
    figure = drawn(plots.stage_lines(*lines))
    FigureCanvasAgg(figure).draw()  # which also lays it out
    legend = figure.axes[0].get_legend().get_window_extent()
    assert 0 <= legend.y0 < legend.y1 <= figure.bbox.height
    assert legend.x1 <= figure.bbox.width


def test_old_and_new_classes_have_a_bar_each(make_run):
    runs = [make_run(f"s{seed}", seed=seed, methods=(*CORE, "ldc", "adc", "sdc")) for seed in (0, 1)]
    (group,) = grouped(*runs)
    containers = drawn(figures.old_new(group)).axes[0].containers
    bars = [one for one in containers if isinstance(one, BarContainer)]
    heights = {one.get_label(): [bar.get_height() for bar in one] for one in bars}
    assert list(heights) == ["base", "projector", "rose", "ldc", "adc", "sdc"]  # gd is the worst of the others
    assert heights["rose"] == [43.0, 80.0]


def test_without_old_classes_there_is_no_figure_of_them(make_run):
    def change(results):
        for score in results["scores"].values():
            score["old"] = None

    assert drawn(figures.old_new(grouped(make_run(change=change))[0])) is None


def test_confusion_is_in_per_cent_of_the_row():
    assert figures.row_percent(((3.0, 1.0, None), (0.0, 0.0))) == ((75.0, 25.0, None), (None, None))


def test_grids_are_averaged_over_seeds_and_may_be_ragged(make_run):
    def ragged(value):
        return lambda r: r["scores"]["rose"].update(matrix=[[value], [50, float("nan")], [1, 2, 3]])

    runs = [make_run(f"s{v}", seed=v, change=ragged(v)) for v in (10, 20)]
    group = grouped(*runs)[0]
    assert figures.mean_grid(group, "rose", "matrix") == ((15,), (50, None), (1, 2, 3))
    figure = drawn(figures.matrix(group))
    (axes,) = [axes for axes in figure.axes if axes.get_title("left") == "rose"]
    values = np.ma.filled(axes.get_images()[0].get_array(), np.nan)
    np.testing.assert_allclose(values, [[15, np.nan, np.nan], [50, np.nan, np.nan], [1, 2, 3]])


def test_awkward_names_and_many_panels(make_run):
    names = ("$\\frac{1}$", "_hidden", "x" * 300, "日本", "rose", "a", "b", "c")
    (group,) = grouped(make_run(methods=names))
    legend = drawn(figures.curves([group])).axes[0].get_legend()
    panels = drawn(figures.matrix(group)).axes
    assert len(legend.get_texts()) == len(names)
    assert len([axes for axes in panels if axes.get_images()]) == figures.MOST_GRIDS
    for data in (figures.curves([group]), figures.drift_cosines(group), figures.cost(group)):
        assert plots.png(data, "title", "dark")


def test_a_row_of_ours_has_a_star_in_figures_as_in_tables():
    scores = {"rose": Score("rose"), "rose_whitened": Score("rose_whitened", origin="ours")}
    group = compare.Group((Run(Path("run"), {}, scores),), "a run")
    assert [line["label"] for line in figures.cost(group)["series"]] == ["rose", "rose_whitened *"]
