"""Tables and groups of runs, against numbers computed by hand or by NumPy."""

import csv
import io
import json

import numpy as np
import pytest

from rose_jax import report
from rose_jax.errors import UserError
from rose_jax.report import compare, tables
from rose_jax.report.__main__ import main
from rose_jax.report.runs import load


def grouped(*workdirs):
    return compare.group([load(w) for w in workdirs])


def test_text_is_aligned_and_carries_the_papers_number(make_run):
    def change(results):
        results["scores"]["gd"].update(origin="ours")
        results["scores"]["projector"].update(origin="published")

    run = make_run(tasks=10, change=change)
    lines = tables.text(tables.methods(grouped(run)[0])).splitlines()
    header, rows = lines[0], lines[2:6]
    assert " ".join(header.split()) == (
        "method last average old new forgetting drift cos ms/image paper its table"
    )
    right_edges = {len(line) for line in [header, *rows]}
    assert len(right_edges) == 1
    assert rows[3].split()[0] == "rose"
    assert rows[3].split()[-3:] == ["53.48", "Table", "1"]
    assert rows[2].startswith("gd *")
    assert tables.NOT_THE_PAPERS in lines
    assert rows[1].startswith("projector †")
    assert tables.PUBLISHED in lines
    assert not rows[0].startswith("base *")


@pytest.mark.parametrize("label", ["thin", "smoke"])
def test_reduced_runs_are_marked_everywhere(make_run, label, no_drawing):
    run = make_run(label=label)
    written = report.write(run)
    assert f"{label.capitalize()} run" in written.text
    assert f"{label.capitalize()} run" in (run / "report.md").read_text()
    assert f"This is a {label} run" in written.html.read_text()
    assert {row["label"] for row in csv.DictReader((run / "report.csv").open())} == {label}


def test_full_runs_are_not_marked(make_run, no_drawing):
    run = make_run()
    written = report.write(run)
    assert " run:" not in written.text
    assert "This is a" not in written.html.read_text()


def test_paper_beside_ours(make_run):
    table = tables.beside_paper(grouped(make_run(tasks=10, methods=("base", "lwf", "rose")))[0])
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == [
        "LwF",
        "SDC",
        "PASS",
        "FeTrIL",
        "FeCAM (1 cov)",
        "FeCAM (c cov)",
        "EFC",
        "ADC",
        "LDC",
        "RoSE",
    ]
    assert rows["SDC"] == ("41.36", "", "")
    printed, ours, gap = rows["LwF"]
    assert printed == "26.14"
    assert float(gap) == pytest.approx(float(ours) - 26.14, abs=0.006)
    assert tables.beside_paper(grouped(make_run("other", dataset="digits"))[0]) is None


def test_seeds_become_mean_and_sample_deviation(make_run):
    runs = [make_run(f"s{seed}", seed=seed) for seed in (0, 1, 2)]
    (group,) = grouped(*runs)
    last = [json.loads((w / "results.json").read_text())["scores"]["rose"]["last"] for w in runs]
    expected = f"{np.mean(last):.2f} ± {np.std(last, ddof=1):.2f}"
    assert {row[0]: row[1] for row in tables.methods(group).rows}["rose"] == expected
    assert dict(tables.comparison([group]).rows)["rose"] == expected


def test_gaps_are_paired_and_rows_that_some_runs_lack_are_named(make_run):
    def last(**accuracies):
        def change(results):
            for name, accuracy in accuracies.items():
                results["scores"][name]["last"] = accuracy

        return change

    runs = [
        make_run(
            f"s{seed}",
            seed=seed,
            tasks=10,
            change=last(rose=50.0 + seed, base=40.0 + 2 * seed, projector=49.0, gd=51.0),
        )
        for seed in (0, 2, 7)
    ]
    methods = ("base", "rose")
    runs.append(make_run("without", seed=8, tasks=10, methods=methods, change=last(rose=50.0, base=48.0)))
    (group,) = grouped(*runs)
    table = tables.methods(group)
    # Over base: 10, 8, 3 and 2 points.
    assert (
        "Gaps within a run: rose minus base +5.75 ± 3.86, rose minus projector +4.00 ± 3.61, rose minus gd +2.00 ± 3.61."
        in table.notes
    )
    assert "Not in every run: projector in 3, gd in 3." in table.notes
    printed = {row[0]: row[-2:] for row in table.rows}
    assert printed["rose"] == ("53.64 ± 0.71", "Table 12")
    assert printed["base"] == ("-", "-")
    assert {row[0]: row[-2:] for row in tables.methods(grouped(runs[0])[0]).rows}["rose"] == ("53.48", "Table 1")


def test_runs_with_the_same_seed_stand_apart(make_run):
    groups = grouped(make_run("a", seed=0), make_run("b", seed=0), make_run("c", seed=1))
    assert [[run.workdir.name for run in group.runs] for group in groups] == [["a", "c"], ["b"]]
    assert "Several of the runs have the same config and seed" in tables.comparison(groups).notes[-1]
    assert "the same config" not in " ".join(tables.comparison(groups[:1]).notes)


def test_what_differs_in_more_than_the_seed_stays_apart(make_run):
    def reorder(results):
        results["setting"]["class_order"] = results["setting"]["class_order"][::-1]

    same = [make_run("a", seed=0), make_run("b", seed=1)]
    groups = grouped(
        *same, make_run("c", label="thin"), make_run("d", seed=1, change=reorder), make_run("e", tasks=5)
    )
    assert [len(g.runs) for g in groups] == [2, 1, 1, 1]
    assert len({g.title for g in groups}) == 4
    wider = make_run("f", seed=3)
    (wider / "config.json").write_text(json.dumps({"seed": 3, "model": {"width": 64}}))
    assert len(grouped(same[0], wider)) == 2
    table = tables.config_differences([load(same[0]), load(wider)])
    assert table.rows == (("seed", "0", "3"), ("model.width", "16", "64"))


def test_csv_holds_unrounded_numbers_and_the_papers_other_rows(make_run):
    run = make_run(tasks=10)
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(tables.to_csv([load(run)])))}
    scores = json.loads((run / "results.json").read_text())["scores"]
    assert float(rows["rose"]["last"]) == scores["rose"]["last"]
    assert rows["rose"]["paper_last"] == "53.48"
    assert (rows["lwf"]["last"], rows["lwf"]["paper_last"], rows["lwf"]["paper_table"]) == ("", "26.14", "tab:b0")
    assert len(rows) == 4 + 9


def test_markdown_names_cannot_leave_their_cell(make_run):
    text = tables.markdown(tables.methods(grouped(make_run(methods=("a|b", "<b>x</b>", "new\nline")))[0]))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "<b>" not in text


def test_terminal_text_has_no_control_characters(make_run, no_drawing):
    written = report.write(make_run(methods=("\x1b[31mred\x07",)))
    assert all(c.isprintable() or c == "\n" for c in written.text)


def test_cost_is_relative_to_base(make_run):
    rows = {row[0]: row[1:] for row in tables.cost(grouped(make_run())[0]).rows}
    assert rows["rose"] == ("3.500", "7.00x", "13.6", f"{13.6 / 7.6:.2f}x")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "has not finished"),
        ("{", "cannot be read"),
        ("[]", '"scores"'),
        ('{"scores": []}', '"scores"'),
        ('{"schema": 2, "scores": {}}', "schema 2"),
    ],
)
def test_bad_results_are_a_user_error_that_names_the_file(tmp_path, capsys, content, says):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(UserError) as raised:
        report.write(tmp_path)
    assert str(tmp_path / "results.json") in str(raised.value)
    assert says in str(raised.value)
    assert main([str(tmp_path)]) == 2
    assert "results.json" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_failed_write_leaves_the_old_report(make_run, monkeypatch, no_drawing):
    run = make_run()
    report.write(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_training_totals_and_objectives(make_run):
    totals = {"seconds": 3.0, "compilations": 4}

    def train(**objectives):
        return lambda r: r.update(train=totals | {"objectives": objectives})

    one = make_run("one", change=train(base={"seconds": 3.0}))
    two = make_run("two", change=train(base={"seconds": 1.0}, lwf={"seconds": 2.0}))
    assert tables.training(load(one)).rows == (("seconds", "3.0"), ("compilations", "4"))
    assert tables.training(load(two)).rows[2:] == (("base: seconds", "1.0"), ("lwf: seconds", "2.0"))


def test_keys_that_change_no_number_do_not_part_seeds(make_run):
    runs = [make_run("a", seed=0, note="one"), make_run("b", seed=1, note="two")]
    (runs[1] / "config.json").write_text(json.dumps({"seed": 1, "model": {"width": 16}, "methods": ["rose"]}))
    assert len(grouped(*runs)) == 1


def test_what_went_wrong_in_a_stream_stands_below_the_table(make_run, no_drawing):
    def change(results):
        results["scores"]["rose"]["counts"] = {
            "images": 90,
            "broken_steps": 12,
            "bad_rows": 0,
            "ill_posed_steps": 3,
        }
        results["scores"]["gd"]["counts"] = {"images": 90, "broken_steps": 0}

    one, two = make_run("one", change=change), make_run("two", seed=1)
    says = "12 updates were not finite and kept the previous prototypes; 3 updates left some direction to the projector"
    text = report.write(one).text
    assert f"\nrose: {says}" in text
    assert "gd: " not in text
    for name in ("report.md", "report.html"):
        assert f"rose: {says}" in (one / name).read_text()
    assert f"\nrose, seed 0: {says}" in tables.text(tables.methods(grouped(one, two)[0]))


def test_a_place_that_cannot_be_written(make_run, tmp_path, capsys, monkeypatch):
    run, file = make_run(), tmp_path / "file"
    file.write_text("")
    for out in (file, file / "folder"):
        assert main([str(run), "--out", str(out)]) == 2
        assert capsys.readouterr().err == f"--out: {file} is a file, not a folder. Give another place.\n"

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rose_jax.runtime.files.tempfile.TemporaryFile", refuse)
    assert main([str(run), "--out", str(tmp_path / "new")]) == 2
    assert (
        capsys.readouterr().err == f"--out: cannot write to {tmp_path} (Permission denied). Give another place.\n"
    )
    assert not (tmp_path / "new").exists()
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "results.json"]
