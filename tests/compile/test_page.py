"""docs/scaling.md has what docs/compiled.json says."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compile_settings", ROOT / "scripts" / "compile_settings.py")
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_page_has_the_tables_of_what_was_compiled(script):
    page = script.PAGE.read_text()
    assert script.update(page, script.tables(script.read())) == page, (
        "run: python scripts/compile_settings.py --update"
    )


def test_every_setting_of_the_paper_is_compiled(script):
    settings = {path.stem for path in (ROOT / "configs").glob("*_*.py")} - {"digits_cold5"}
    assert set(script.SETTINGS) == settings


def test_a_table_by_hand(script):
    """39 steps of 3 and 390 of 4 million cycles at 1 GHz: 39 x 3 ms + 390 x 4 ms = 1.677 s."""
    common = {"unit": "step", "fits": True, "code": 0, "arguments": 2**29, "temporary": 2**30, "outputs": 0}
    first = common | {"name": "base: first task", "runs": 39, "cycles": 3e6, "share_of_peak": 0.25}
    later = common | {"name": "base: later tasks", "runs": 390, "cycles": 4e6, "share_of_peak": 0.5}
    later["collectives"] = {"all-reduce": 40.0}
    found = {"v5e:1 cifar100_cold10": {"chip": {"clock": 1e9}, "programs": [first, later]}}
    found["v5e:2x4 cifar100_cold10"] = {"chip": {"clock": 1e9}, "programs": [first, later | {"cycles": 1e6}]}
    (row,) = script.setting_rows(found)[1:]
    assert row == ["cifar100_cold10", "39 + 390", "3.00 / 4.00", "3.0 / 4.0", "25% / 50%", "1.5", "0 min"]
    (row,) = script.eight_rows(found)[1:]
    assert row == ["cifar100_cold10", "3.00 / 1.00", "3.0 / 1.0", "50 %", "40 all-reduce", "0 min"]


def test_a_setting_that_does_not_fit_has_a_row_that_says_so(script):
    program = {"name": "base: later tasks", "unit": "step", "fits": False, "message": "Used 20G of 16G hbm."}
    for topology, rows in (("v5e:1", script.setting_rows), ("v5e:2x4", script.eight_rows)):
        (row,) = rows({f"{topology} tiny_warm20": {"chip": {"clock": 1e9}, "programs": [program]}})[1:]
        assert row[:2] == ["tiny_warm20", "base: later tasks does not fit: Used 20G of 16G hbm."]


def test_what_has_no_estimate_is_counted_by_kind(script):
    counts = {"data/resident.py gather: gather": 2, "train/step.py one: gather": 1, "Cholesky": 4}
    assert script.without_estimate(counts) == "3 gather, 4 Cholesky"
    assert script.without_estimate({}) == "none"
