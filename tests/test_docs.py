"""README and docs say what is there: links, paths, rows, presets, commands, layers, the worked example."""

import importlib
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rose_jax.config import validate
from rose_jax.methods import METHODS, resolve
from rose_jax.settings import PRESETS
from rose_jax.types import ClassMemory

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) < 120


@every_page
def test_links_resolve(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.is_file(), link
            assert not anchor or anchor in anchors(target), link


@every_page
def test_paths_exist(page):
    named = re.findall(r"\b(?:configs|docs|examples|rose_jax|scripts|tests)/[\w/.]*\w", page.read_text())
    missing = [path for path in named if "NAME" not in path and not (ROOT / path).exists()]
    invented = ["rose_jax/compensation/mean_drift.py"] if page.name == "adding_a_method.md" else []
    # /mnt/rose_jax/runs and the like are no paths of the repository.
    assert [path for path in missing if not path.startswith("rose_jax/runs")] == invented


@every_page
def test_commands_name_settings_and_rows_that_exist(page):
    text = page.read_text()
    for name, preset in re.findall(r"--config configs/(\w+)\.py(?::(\w+))?", text):
        validate(importlib.import_module(f"configs.{name}").get_config(preset))
    for rows in re.findall(r"--methods ([\w+]+(?:,[\w+]+)+)", text):
        resolve(rows.split(","))


def test_every_row_and_preset_is_named():
    quoted = set(re.findall(r"`([^`\n]+)`", (ROOT / "docs/rows.md").read_text()))
    assert set(METHODS) | {f":{preset}" for preset in PRESETS if preset} <= quoted


def test_the_registries_are_named():
    page = (ROOT / "docs/adding_a_method.md").read_text()
    rows = re.findall(r"\| `([\w/]+)/NAME\.py` \| `(\w+)` \| `(\w+)\(.+?\)` \| (.+) \|", page)
    assert len(rows) == 4
    for folder, registry, kind, examples in rows:
        lines = getattr(importlib.import_module(f"rose_jax.{folder.replace('/', '.')}"), registry)
        for example in re.findall(r"`(\w+)\.py`", examples):
            made = importlib.import_module(f"rose_jax.{folder.replace('/', '.')}.{example}")
            assert lines[example].make is made.make
            assert made.make.__annotations__["return"].__name__ == kind


def test_the_layers_are_those_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    page = (ROOT / "docs/architecture.md").read_text()
    listed = re.search(r"  ```\n(  main \| sweep \| study.*?\n.+?)  ```", page, re.S)
    assert [line.strip() for line in listed[1].splitlines()] == contracts[0]["layers"]
    assert f"checks {['no', 'one', 'two', 'three', 'four'][len(contracts)]} contracts" in page


def test_the_worked_example_works():
    page = (ROOT / "docs/adding_a_method.md").read_text()
    plugin = re.search(r"mean_drift\.py`:\n\n```python\n(.+?)```", page, re.S)[1]
    space = {}
    exec(plugin, space)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((2, 5, 3)).astype(np.float32)
    view = SimpleNamespace(stage=1, train_features=lambda k: (features[k], np.zeros(5, int)))
    memory = ClassMemory(rng.standard_normal((4, 3)).astype(np.float32), np.array([0, 0, 1, -1]))
    parts = SimpleNamespace(config=SimpleNamespace(mean_drift=SimpleNamespace(share=0.5)))
    moved, drift_map = space["make"](parts).move(memory, view, jax.random.key(0))
    drift = 0.5 * (features[1] - features[0]).mean(0)
    np.testing.assert_allclose(moved.mean - memory.mean, [drift, drift, 0 * drift, 0 * drift], atol=1e-6)
    assert drift_map is None
