"""The figure of prototypes on their way: what is drawn where, and runs that have no such data."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from test_report_figures import TO_XYZ, drawn, grouped, lab, linear

from rose_jax.report import figures, style
from rose_jax.report.runs import load


def marked(axes, marker):
    """Where this marker was drawn, in the order of drawing."""
    return np.array([line.get_xydata()[0] for line in axes.lines if line.get_marker() == marker])


def test_each_panel_shows_start_path_end_and_truth(make_run):
    workdir = make_run(methods=("rose", "base", "gd", "projector"))
    run = load(workdir)
    figure = drawn(figures.paths(grouped(workdir)[0]))
    assert [axes.get_title(loc="left").split()[0] for axes in figure.axes] == ["base", "projector", "rose"]
    for axes in figure.axes:
        path = np.array(run.scores[axes.get_title(loc="left").split()[0]].path)  # [moment, class, 2]
        discs = marked(axes, "o")  # for each class first the ring, then the disc
        np.testing.assert_array_equal(discs[0::2], path[0])
        np.testing.assert_array_equal(discs[1::2], path[-1])
        np.testing.assert_array_equal(marked(axes, "X"), run.planes["base"].true_means)
        lines = [line.get_xydata() for line in axes.lines if line.get_marker() == "None"]
        missed, ways = lines[0::3], lines[1::3]
        np.testing.assert_array_equal(ways, path.transpose(1, 0, 2))
        np.testing.assert_array_equal(missed, np.stack([path[-1], run.planes["base"].true_means], axis=1))
        assert [text.get_text() for text in axes.texts] == [run.class_names[c] for c in (0, 5)]
        (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
        every = np.concatenate([np.reshape(s.path, (-1, 2)) for s in run.scores.values() if s.name != "gd"])
        assert ((every > (x0, y0)) & (every < (x1, y1))).all(), "no path leaves the panel"
        assert sum(len(cloud.get_offsets()) for cloud in axes.collections) == 4


def nothing(results):
    del results["planes"]


def of_other_encoders(results):
    results["planes"]["base"]["encoders"] = "other"


def one_class_less(results):
    results["planes"]["base"]["classes"].pop()


def no_numbers(results):
    results["planes"]["base"]["points"][0] = [None, "x"]


def no_paths(results):
    for score in results["scores"].values():
        score["path"] = 3


@pytest.mark.parametrize("change", [nothing, of_other_encoders, one_class_less, no_numbers, no_paths])
def test_what_a_run_does_not_know_is_not_drawn(make_run, change):
    assert drawn(figures.paths(grouped(make_run(change=change))[0])) is None


def test_of_several_seeds_the_title_names_the_one(make_run):
    (group,) = grouped(make_run("a", seed=3, change=nothing), make_run("b", seed=4))
    assert [panel["title"].rpartition(", ")[2] for panel in figures.paths(group)["panels"]] == ["seed 4"] * 3


def test_classes_can_be_told_apart_and_read():
    colors = [style.class_color(number) for number in range(8)]
    assert len(set(colors)) == 8
    for color in colors:
        light = (TO_XYZ @ linear(np.array(to_rgb(color))))[1]  # relative luminance, of WCAG's contrast
        ink = {"black": 0.0, "white": 1.0}[style.ink_on(color)]
        assert (max(light, ink) + 0.05) / (min(light, ink) + 0.05) >= 4, color
    assert (
        min(
            np.linalg.norm(lab(linear(np.array(to_rgb(a)))) - lab(linear(np.array(to_rgb(b)))))
            for i, a in enumerate(colors)
            for b in colors[:i]
        )
        > 20
    )
