"""Studies in the report: drawn from their files alone, safe with any content, absent when they are not ours."""

import copy
import json

import matplotlib
import pytest
from test_report_page import HOSTILE, Outline

from rose_jax import report
from rose_jax.report import compare, plots, runs, studies, style

LINE = {"method": "rose", "label": "rose", "x": [1, 10, 100], "y": [20.0, 25.0, None], "std": [0.5, None, 0.1]}
FIGURES = {
    "lines": {"kind": "lines", "x": "n", "y": "%", "log_x": True, "panels": [{"title": "one", "series": [LINE]}]},
    "bars": {"kind": "bars", "y": "%", "groups": ["a", "b", "c"], "series": [LINE, LINE | {"variant": 1}]},
    "rows": {"kind": "rows", "x": "ms", "series": [LINE, LINE | {"method": "gd", "paper": True}]},
    "histograms": {"kind": "histograms", "x": "cosine", "series": [LINE | {"y": [0.5, 0.9, None]}]},
    "grids": {
        "kind": "grids",
        "x": "a",
        "y": "b",
        "colors": "%",
        "panels": [{"title": "one", "rows": [[1], [2, 3]]}],
    },
}


def study(name="capacity", **changes):
    return {
        "schema": 1,
        "study": name,
        "title": "queue capacity",
        "paper": "tab:queue_capacity",
        "says": "The best capacity is 1000.",
        "table": {
            "header": ["capacity", "last"],
            "rows": [["500", "20.00"], ["1000", "21.00"]],
            "notes": ["Mean."],
        },
        "figure": FIGURES["lines"],
        "seconds": 1.5,
    } | changes


def put(run, *found):
    (run / "studies").mkdir(exist_ok=True)
    for number, one in enumerate(found):
        text = one if isinstance(one, str) else json.dumps(one)
        (run / "studies" / f"{number}.json").write_text(text)


def test_a_study_has_its_section(make_run, no_drawing):
    run = make_run()
    put(run, study())
    written = report.write(run)
    page, markdown = Outline(written.html.read_text()), (run / "report.md").read_text()
    assert "Study capacity: queue capacity" in page.headings
    text = " ".join(page.words)
    for part in ("The best capacity is 1000.", "21.00", "Mean.", "Beside the paper's Table 5."):
        assert part in text
    assert page.tags.count("img") == 9
    assert "![Queue capacity. Beside the paper's Table 5.](figures/capacity.png)" in markdown
    assert "| 1000 | 21.00 |" in markdown
    assert (run / "figures" / "capacity.png") in written.figures


def test_hostile_studies_stay_text(make_run, no_drawing):
    poisoned = json.loads(json.dumps(study()).replace("queue capacity", json.dumps(HOSTILE)[1:-1]))
    poisoned["says"] = poisoned["table"]["rows"][0][0] = poisoned["table"]["notes"][0] = HOSTILE
    run = make_run()
    put(run, poisoned)
    page = Outline(report.write(run).html.read_text())
    assert page.open == []
    assert "script" not in page.tags
    assert HOSTILE in page.words
    prose = [line for line in (run / "report.md").read_text().splitlines() if not line.startswith("    ")]
    assert not any("<script" in line or "<img" in line for line in prose)


def damaged(*path, value=None):
    one = copy.deepcopy(study())
    inner = one
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return one


NOT_STUDIES = (
    "",
    "{",
    "[]",
    "{}",
    damaged("schema", value=99),
    damaged("table"),
    damaged("table", "rows", value=[["1"]]),
    damaged("figure", value="none"),
    damaged("study", value="../../elsewhere"),
    damaged("study", value="x](http://example.org) <b>"),
    damaged("study", value="matrix"),
    damaged("study", value="old_new"),
    damaged("study", value=7),
)


def test_what_is_not_a_study_is_left_out(make_run, no_drawing):
    run = make_run()
    put(run, *NOT_STUDIES, study("eliminate"))
    page = Outline(report.write(run).html.read_text())
    assert [heading for heading in page.headings if "Study" in heading] == ["Study eliminate: queue capacity"]


@pytest.mark.parametrize("kind", FIGURES)
def test_every_kind_of_figure_is_drawn_from_its_file(kind):
    with matplotlib.rc_context(style.theme("dark")):
        assert style.png(plots.draw(json.loads(json.dumps(FIGURES[kind])), "title")).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "data",
    [{}, {"kind": "pie"}, {"kind": "lines"}, {"kind": "lines", "x": "", "y": "", "panels": [{"series": 3}]}],
)
def test_a_figure_that_cannot_be_drawn_is_none(data):
    assert plots.draw(data, "title") is None


def test_of_several_seeds_the_first_that_has_it(make_run):
    first, second = make_run("one", seed=1), make_run("two", seed=2)
    put(second, study())
    (group,) = compare.group([runs.load(first), runs.load(second)])
    (found,) = studies.of(group)
    assert found.title == "queue capacity (seed 2)"
