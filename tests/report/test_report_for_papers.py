"""What goes into a paper: bold best values, LaTeX, vector figures, curves of several runs in one axis, class names."""

import csv
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from test_report_figures import drawn, grouped

from rose_jax.report import compare, figures, glossary, latex, paper, plots, style, tables
from rose_jax.report.__main__ import main
from rose_jax.report.runs import load
from rose_jax.report.tables import Table


def best_cells(table):
    return {(table.rows[r][0], table.header[c]): table.rows[r][c] for r, c in table.best}


def test_the_best_value_of_a_column_is_bold_and_not_our_row(make_run):
    """gd ahead of rose, as it was on the digits."""

    def change(results):
        results["scores"]["gd"]["last"] = 99.0
        results["scores"]["base"]["forgetting"] = 3.0

    (group,) = grouped(make_run(change=change))
    best = best_cells(tables.methods(group))
    assert [row for row, column in best if column == "last"] == ["gd"]
    assert [row for row, column in best if column == "forgetting"] == ["base"]
    assert [row for row, column in best if column == "ms/image"] == ["base"]
    assert not [row for row, column in best if column == "new"]  # all the same
    stages = tables.stages(group)
    for c in range(1, len(stages.header)):
        numbers = [float(row[c]) for row in stages.rows]
        assert {r for r, column in stages.best if column == c} == {
            i for i, v in enumerate(numbers) if v == max(numbers)
        }


def test_bold_on_every_page(make_run, no_drawing, capsys):
    run = make_run(change=lambda r: r["scores"]["gd"].update(last=99.0))
    assert main([str(run), "--latex"]) == 0
    row = re.search(r"<tr><th scope=.row.>gd</th>.*?</tr>", (run / "report.html").read_text()).group()
    assert "<td><b>99.00</b></td>" in row
    assert "| gd | **99.00** |" in (run / "report.md").read_text()
    assert r"gd & \textbf{99.00} &" in (run / "report.tex").read_text()
    assert "emphasis" not in (run / "report.html").read_text()


def test_latex_is_escaped_and_whole(make_run, no_drawing, capsys, tmp_path):
    names = (r"100% \input{x}", "a_b & c", "$rose^2$", "rose")
    run = make_run(methods=names, change=lambda r: r["setting"]["class_names"].__setitem__(68, "cat_dog & co"))
    assert main([str(run), str(make_run("other", tasks=2)), "--latex", "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.tex").read_text()
    assert r"\input{x}" not in text
    assert r"a\_b \& c" in text
    assert r"\includegraphics[width=\linewidth]{figures/curves.pdf}" in text
    for begun, ended in (("table", "table"), ("tabular", "tabular"), ("figure", "figure")):
        assert text.count(rf"\begin{{{begun}}}") == text.count(rf"\end{{{ended}}}") > 0
    for block in re.findall(r"\\begin{tabular}{(l.*?)}(.*?)\\end{tabular}", text, re.DOTALL):
        lines = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(block[0])}
    assert latex.escape("1 ± 2 †") == r"1 $\pm$ 2 $\dagger$"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on PATH")
def test_latex_compiles(make_run, no_drawing, tmp_path):
    table = latex.tabular(Table(("a_b", "c"), (("1", "2 ± 3"),), ("A note",), ((0, 1),)), "100 % of $x$")
    text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{table}\end{{document}}"
    (tmp_path / "t.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0


def test_figures_as_pdf_and_svg_without_a_title(make_run):
    data = figures.curves(grouped(make_run()))
    first, second = plots.paint(data, "curves"), plots.paint(data, "curves")
    assert first == second  # no dates, no random names
    assert first.pdf.startswith(b"%PDF")
    assert b"/Type /Font" in first.pdf
    root = ET.fromstring(first.svg)
    assert root.tag.endswith("svg")
    red = "#" + "".join(f"{round(255 * v):02x}" for v in to_rgb(style.look("rose").color))
    assert red in first.svg.decode().lower()
    for axes in drawn(data).axes:
        assert axes.get_title("left") == axes.get_title() == ""


def test_two_runs_in_one_axis_are_named_by_what_differs(make_run):
    def with_alpha(run, alpha):
        (run / "config.json").write_text(json.dumps({"seed": 0, "name": run.name, "evolution": {"alpha": alpha}}))
        return run

    a, b = with_alpha(make_run("a"), 0.2), with_alpha(make_run("b"), 0.02)
    groups = grouped(a, b)
    titles = ["CIFAR-100 cold 3, alpha 0.2", "CIFAR-100 cold 3, alpha 0.02"]
    assert [group.title for group in groups] == titles
    changed = with_alpha(make_run("changed", label="custom"), 0.02)  # as --config.evolution.alpha=0.02 calls it
    assert [group.title for group in grouped(a, changed)] == titles
    assert [group.title for group in grouped(changed)] == ["CIFAR-100 cold 3, custom"]
    figure = drawn(figures.curves(groups))
    (axes,) = figure.axes
    lines = {line.get_label().rsplit(" ", 1)[0]: line for line in axes.get_lines()}
    assert set(lines) == {
        f"{m}, {alpha}" for m in ("base", "projector", "gd", "rose") for alpha in ("alpha 0.2", "alpha 0.02")
    }
    for run, alpha in ((a, "alpha 0.2"), (b, "alpha 0.02")):
        np.testing.assert_allclose(lines[f"rose, {alpha}"].get_ydata(), load(run).scores["rose"].per_stage)
    assert lines["rose, alpha 0.2"].get_color() == lines["rose, alpha 0.02"].get_color()
    assert lines["rose, alpha 0.2"].get_linestyle() != lines["rose, alpha 0.02"].get_linestyle()
    other = make_run("c", dataset="pets", tasks=2, data="own pets")
    assert compare.distinct_names(grouped(make_run("d"), other)) == ["CIFAR-100 cold 3", "pets cold 2"]


def test_of_many_runs_the_leading_methods_are_drawn(make_run):
    runs = [make_run(f"r{tasks}", tasks=tasks) for tasks in (2, 3, 4, 5)]
    lines = figures.curves(grouped(*runs))["panels"][0]["series"]
    assert len(lines) == 8
    assert {line["method"] for line in lines} == {"rose", "base"}


def test_accuracy_on_each_class_by_name(make_run):
    run = make_run(tasks=10)
    (group,) = grouped(run)
    saved = json.loads((run / "results.json").read_text())
    order = saved["setting"]["class_order"]
    table = tables.per_class(group)
    assert table.header == ("class", "task", "base", "projector", "gd", "rose")
    assert [row[0] for row in table.rows] == [f"thing {c}" for c in order]
    assert [row[1] for row in table.rows] == [str(1 + i // 10) for i in range(100)]
    rose = saved["scores"]["rose"]["per_class"]
    assert [row[-1] for row in table.rows] == [f"{value:.1f}" for value in rose]
    for r, row in enumerate(table.rows):
        numbers = [float(cell) for cell in row[2:]]
        assert {c - 2 for line, c in table.best if line == r} == {
            i for i, v in enumerate(numbers) if v == max(numbers)
        }
    rows = list(csv.DictReader(io.StringIO(tables.per_class_csv([load(run)]))))
    assert len(rows) == 400
    assert float(rows[-1]["accuracy"]) == rose[-1]
    data = figures.per_class(group)
    assert len(data["groups"]) == figures.MOST_CLASSES
    spread = np.ptp([saved["scores"][m]["per_class"] for m in saved["scores"]], axis=0)
    widest = {f"thing {order[c]}" for c in np.argsort(-spread)[: figures.MOST_CLASSES]}
    assert set(data["groups"]) == widest
    (axes,) = drawn(data).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == data["groups"]


def test_runs_of_earlier_versions_have_no_classes(make_run, no_drawing):
    def change(results):
        del results["setting"]["class_names"]
        for score in results["scores"].values():
            del score["per_class"]

    (group,) = grouped(make_run(change=change))
    assert tables.per_class(group) is None
    assert drawn(figures.per_class(group)) is None
    assert tables.per_class_csv(group.runs) == ""


def test_no_caption_has_a_label_of_the_paper_s_source(make_run, no_drawing):
    run = make_run(tasks=10)
    assert main([str(run)]) == 0
    shown = (run / "report.html").read_text() + (run / "report.md").read_text()
    assert not re.findall(r"\b(?:tab|fig):\w+", shown)
    labels = {cell.table for cell in paper.cells()}
    assert all(paper.place(label) != label for label in labels)


def test_the_glossary_explains_every_column(make_run):
    words = dict(glossary.of(["base", "lwf+rose", "rose_whitened"]))
    columns = tables.methods(grouped(make_run())[0]).header
    for column in columns[1:]:
        assert any(column in word.split(", ") for word in words) or column in ("paper", "its table"), column
    assert {"base", "rose", "X+Y", "..._whitened"} <= set(words)
