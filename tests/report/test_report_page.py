"""report.html: complete, self-contained, safe with any name, and there even when most of the results are not."""

import base64
import json
import re
from html.parser import HTMLParser

import pytest

from rose_jax import report
from rose_jax.report import content
from rose_jax.report.__main__ import main
from rose_jax.report.compare import group
from rose_jax.report.page import CSS
from rose_jax.report.runs import load

HOSTILE = "</td><script>alert(1)</script><img src=http://example.com/x onerror=alert(2)>\"'&"


class Outline(HTMLParser):
    """Tags, attributes and text of a page, and whether every tag is closed in order."""

    VOID = ("meta", "link", "img", "source", "hr")

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words, self.headings, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for key, value in attributes if key in ("src", "href", "srcset")]
        assert not [key for key, _ in attributes if key.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def test_contents(make_run, no_drawing):
    run = make_run(tasks=10, label="thin", seed=7)
    written = report.write(run)
    page = Outline(written.html.read_text())
    assert page.open == []
    assert page.headings == [
        "CIFAR-100 cold 10, thin",
        "The paper's table, ours beside it",
        "Methods",
        "Accuracy after each task",
        "Where the old prototypes go",
        "Old and new classes",
        "Accuracy on each class",
        "Confusion by task",
        "Accuracy matrix",
        "Drift of the old prototypes",
        "Cost at test time",
        "What the words mean",
        "How to repeat this",
    ]
    text = " ".join(page.words)
    for part in (
        "CIFAR-100, cold start: 100 classes in 10 tasks of 10.",
        "class order begins 68, 56, 78, 8, 23",
        "python -m rose_jax.main --config X",
        "Table 1",
        "53.64 ± 0.71",
        "1.2.3",
        '"width": 16',
    ):
        assert part in text
    assert re.search(r"seed\s+7", text)
    assert [path.name for path in written.figures] == [
        "curves.png",
        "paths.png",
        "old_new.png",
        "per_class.png",
        "confusion.png",
        "matrix.png",
        "drift_cosines.png",
        "cost.png",
    ]
    others = ("report.md", "report.csv", "per_class.csv", "figures/curves.pdf", "figures/curves.svg")
    for name in ("report.html", *others, *(f"figures/{p.name}" for p in written.figures)):
        assert (run / name).stat().st_size > 0
    assert not list(run.rglob(".*"))  # no temporary files are left


def test_nothing_comes_from_elsewhere(make_run, no_drawing):
    text = report.write(make_run()).html.read_text()
    page = Outline(text)
    assert page.tags.count("img") == page.tags.count("source") == 8
    assert all(link.startswith("data:") for link in page.links)
    for link in page.links:
        if "base64," in link:
            assert base64.b64decode(link.split("base64,")[1]).startswith(b"\x89PNG")
    assert "script" not in page.tags
    assert "url(" not in CSS
    assert "@import" not in CSS
    assert "prefers-color-scheme: dark" in CSS
    assert "default-src 'none'" in text


def test_hostile_names_stay_text(make_run):
    def poison(results):
        results["setting"].update(config_name=HOSTILE, dataset=HOSTILE, label=HOSTILE, seed=HOSTILE, start=HOSTILE)
        results["environment"] = {HOSTILE: HOSTILE, "command": HOSTILE}
        results["train"] = {HOSTILE: {HOSTILE: HOSTILE}}

    run = make_run(methods=(HOSTILE, "rose"), change=poison)
    (run / "config.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    text = report.write(run).html.read_text()
    page = Outline(text)
    assert page.open == []
    assert "script" not in page.tags
    assert page.tags.count("img") == 8
    assert HOSTILE in page.words  # shown as it is
    markdown = (run / "report.md").read_text()
    prose = [line for line in markdown.splitlines() if not line.startswith("    ")]
    assert not any("<script" in line or "<img" in line for line in prose)


def drop(*keys):
    def change(results):
        for score in results["scores"].values():
            for key in keys:
                score.pop(key, None)

    return change


def only_nan(results):
    for score in results["scores"].values():
        score.update({key: float("nan") for key in score if key not in ("origin", "matrix", "confusion")})
        score.update(
            per_stage=[float("nan"), None], matrix=[[None]], confusion=[[0, 0], [0, 0]], drift_cosines=[None]
        )


@pytest.mark.parametrize(
    "change",
    [
        drop("matrix", "confusion", "drift_cosines", "drift_cosine", "ms_per_image", "per_stage", "origin"),
        drop("last", "average", "old", "new", "forgetting"),
        only_nan,
        lambda r: r.update(scores={}),
        lambda r: r.update(scores={"rose": None}),
        lambda r: r.update(setting={}, train=None, environment=None),
        lambda r: r.update(setting=None, train={"seconds": 1.5, "compilations": None}),
        lambda r: r["setting"].update(task_classes=None, class_order=None, tasks=None, start=None, label=None),
        lambda r: r["scores"]["rose"].update(confusion=[[1, 2], "x"], matrix=5, per_stage="no", drift_cosines=0.5),
        lambda r: r["scores"]["base"].update(ms_per_image=0),
    ],
    ids=[
        "curves only",
        "no numbers",
        "nan",
        "no methods",
        "null",
        "no setting",
        "flat",
        "sparse",
        "wrong",
        "zero",
    ],
)
def test_missing_parts_are_left_out(make_run, change, no_drawing):
    run = make_run(change=change)
    written = report.write(run)
    assert Outline(written.html.read_text()).open == []
    assert written.text.count("nan") == 0
    (run / "config.json").unlink()
    report.write(run)


def test_one_method_one_stage(make_run):
    written = report.write(make_run(methods=("rose",), tasks=1))
    assert "one task" in written.html.read_text()
    assert "old_new.png" not in [path.name for path in written.figures]  # bars of one method compare nothing
    assert len(written.figures) == 6


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([50, *[5] * 10], "a first task of 50, then 10 of 5"),
        ([3, 4, 5], "tasks of 3, 4, 5"),
        ([2] * 5, "5 tasks of 2"),
    ],
)
def test_splits_in_words(make_run, sizes, words, no_drawing):
    run = make_run(task_classes=[list(range(n)) for n in sizes])
    assert words in content.sentence(group([load(run)])[0])


def test_several_runs_side_by_side(make_run, tmp_path, capsys, no_drawing):
    runs = [make_run("a", seed=0), make_run("b", seed=1), make_run("c", tasks=5, methods=("base", "rose", "lwf"))]
    out = tmp_path / "out"
    assert main([*map(str, runs), "--out", str(out)]) == 0
    assert "±" in capsys.readouterr().out
    page = Outline((out / "report.html").read_text())
    assert page.open == []
    assert page.headings[:4] == [
        "3 runs",
        "Last accuracy side by side",
        "Accuracy after each task",
        "What differs in the configs",
    ]
    assert "CIFAR-100 cold 3 (n=2)" in page.words
    assert sorted(p.name for p in (out / "figures").iterdir()) == ["curves.pdf", "curves.png", "curves.svg"]
    assert page.headings.count("What the words mean") == 1
    assert not (out / "report.tex").exists()
    assert not (runs[0] / "report.html").exists()


def test_seeds_only_are_one_report(make_run, tmp_path, no_drawing):
    runs = [make_run(f"s{seed}", tasks=10, seed=seed) for seed in (0, 1, 2)]
    written = report.write_several(runs, tmp_path / "out")
    page = Outline(written.html.read_text())
    assert page.headings[0] == "CIFAR-100 cold 10, 3 seeds"
    assert "Mean ± sample deviation over 3 runs (seeds 0, 1, 2)." in page.words
    assert len(written.figures) == 8
    for text in (written.text, (tmp_path / "out" / "report.md").read_text(), " ".join(page.words)):
        assert "53.64 ± 0.71" in text  # the paper's
        assert "Table 12" in text
        assert "Gaps within a run: rose minus base +" in text


def test_copies_of_a_run_have_no_deviation(make_run, tmp_path, capsys, no_drawing):
    a, b = make_run("a"), make_run("b")
    out = ["--out", str(tmp_path / "out")]
    assert main([str(a), str(b / ".." / "a"), *out]) == 0  # one run by two names
    text = capsys.readouterr().out
    assert "±" not in text
    assert "copies of one run" not in text
    assert main([str(a), str(b), str(make_run("c", seed=1)), *out]) == 0
    text = capsys.readouterr().out
    assert "copies of one run have no deviation" in text
    assert "over 2 runs (seeds 0, 1)" in text
    assert "CIFAR-100 cold 3 (b)" in text
