"""scripts/bench.py: every benchmark still fits the code that it measures, and what they share counts correctly."""

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

NAMES = ("blas", "conv", "decode", "evolution", "methods", "train")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    monkeypatch.setattr(
        os, "environ", dict(os.environ)
    )  # evolution sets threads, which is not for the other tests
    return importlib.import_module("bench")


@pytest.fixture
def shared(bench):
    return importlib.import_module("benches.shared")


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_is_measured(bench, capsys, name):
    with pytest.raises(SystemExit) as end:
        bench.main([name, "--help"])
    assert end.value.code == 0
    assert importlib.import_module(f"benches.{name}").__doc__.splitlines()[0] in capsys.readouterr().out
    assert f"    {name} " in bench.__doc__


def test_a_whole_benchmark(bench, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("benches.blas"), "IMAGES", 64)
    assert bench.main(["blas", "--dims", "8", "--rounds", "1", "--json", str(tmp_path / "found.json")]) == 0
    out = capsys.readouterr().out
    assert f"of {os.cpu_count()} cores" in out
    assert "| d = 8 |" in out
    (table,) = json.loads((tmp_path / "found.json").read_text())["tables"].values()
    assert table["d = 8"]["one thread, ms per image"] > 0


def test_what_a_jpeg_costs(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("benches.decode"), "IMAGES", 1)
    found = tmp_path / "found.json"
    assert bench.main(["decode", "--rounds", "1", "--json", str(found)]) == 0
    (table,) = json.loads(found.read_text())["tables"].values()
    assert len(table) == 2
    assert all(row["CPU ms per image"] > 0 for row in table.values())


TINY = """
from rose_jax.config import Config

def get_config(preset):
    config = Config(name="tiny")
    config.data.normalisation, config.data.images_per_class = "digits", 16
    config.scenario.tasks, config.model.encoder, config.model.width = 5, "tiny", 2
    config.train.batch_size, config.evolution.capacity = 16, 16
    return config
"""


def test_what_rows_cost(bench, capsys, tmp_path):
    """A row that reads features and one that reads images."""
    config, found = tmp_path / "tiny.py", tmp_path / "found.json"
    config.write_text(TINY)
    rows = ["--methods", "rose,batch_norm", "--images", "20", "--rounds", "1"]
    assert bench.main(["methods", "--config", str(config), *rows, "--json", str(found)]) == 0
    (table,) = json.loads(found.read_text())["tables"].values()
    assert list(table) == ["lwf", "lwf_ncm", "rose", "batch_norm"]
    assert all(row["test, ms per image"] > 0 and row["end of a task, s"] > 0 for row in table.values())
    assert table["lwf"]["training step, x lwf"] == 1
    assert table["rose"]["training, min"] == table["batch_norm"]["training, min"] > 0, "the same encoders"


def test_training_that_takes_over_another_s_first_task_counts_it(bench, tmp_path, monkeypatch):
    """By a clock on which every step takes a minute: 32 images in two tasks' steps of 16, but PASS's of 8."""
    methods = importlib.import_module("benches.methods")
    monkeypatch.setattr(methods, "in_turns", lambda runs, rounds: {name: np.array([60.0]) for name in runs})
    config, found = tmp_path / "tiny.py", tmp_path / "found.json"
    schedules = """
    from rose_jax.config import Recipe, Schedule
    config.pass_.recipe = Recipe(8, Schedule(3, 1e-3, (), 0.0), Schedule(1, 1e-3, (), 0.0))
    config.ssre.recipe = Recipe(16, Schedule(50, 1e-3, (), 0.0), Schedule(2, 1e-3, (), 0.0))
"""
    config.write_text(TINY.replace("    return config", schedules + "    return config"))
    rows = ["--methods", "pass,ssre", "--images", "20", "--rounds", "1"]
    assert bench.main(["methods", "--config", str(config), *rows, "--json", str(found)]) == 0
    (table,) = json.loads(found.read_text())["tables"].values()
    assert table["pass"]["training, min"] == 3 * 4 + 4 * 4
    assert table["ssre"]["training, min"] == 3 * 4 + 4 * 2 * 2


def test_what_an_epoch_costs(bench, tmp_path, monkeypatch):
    train, tiny = (importlib.import_module(name) for name in ("benches.train", "rose_jax.models.tiny"))
    monkeypatch.setattr(train, "make_encoder", lambda options: tiny.tiny(options.width))
    found = tmp_path / "found.json"
    bench.main(["train", "--width=2", "--batch=8", "--steps=2", "--rounds=1", "--json", str(found)])
    times, claims = json.loads(found.read_text())["tables"].values()
    assert list(times) == ["bare", "looped", "checkpointed"]
    assert times["bare"]["ms per step"] > 0
    assert len(claims) == 2


def test_turns(shared):
    called, now = [], iter(range(1000))
    runs = {"a": lambda x: called.append(f"a{x}"), "b": lambda x: called.append(f"b{x}")}
    times = shared.in_turns(runs, 2, per=4, prepare=lambda: ("!",), clock=lambda: next(now))
    assert called == ["a!", "b!", "b!", "a!", "a!", "b!"]
    assert {name: own.tolist() for name, own in times.items()} == {"a": [0.25, 0.25], "b": [0.25, 0.25]}


def test_ratios_are_taken_round_by_round(shared):
    times = {"slow": np.array([2.0, 40.0, 6.0]), "fast": np.array([1.0, 10.0, 1.0])}
    assert shared.ratio(times["slow"], times["fast"]) == (4, 3, 5)
    assert shared.by_columns(times, "fast")["slow / fast"].median == 4
    assert shared.by_rows(times, "fast")["slow"] == {"ms per image": 6000.0, "x fast": (4, 3, 5)}


def test_a_table_with_a_column_of_one_row_and_a_missed_claim(shared, capsys):
    report = shared.Report("some")
    report.table("title", {"one": {"x": 1.0}, "two": {"x": 2.0, "y": shared.Ratio(1.5, 1.0, 2.0)}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["| one | 1.000 |                        |", "| two | 2.000 | 1.500 (1.000 to 2.000) |"]
    report.claim("at least", shared.Ratio(3.0, 1.0, 4.0), ">=", 2)
    assert report.close(None) == 0
    report.claim("at most", 3.0, "<=", 2)
    assert report.close(None) == 1
    assert "MISSED" in capsys.readouterr().out
