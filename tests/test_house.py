"""The rules of the house that a tool can check: who imports whom (pyproject.toml), and who builds a mesh."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `lint-imports` says of the package in a folder."""
    command, env = [sys.executable, "-c", LINT, "--no-cache"], os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_every_contract_is_kept():
    found = lint(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "3 kept, 0 broken" in found.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract", "import_"),
    [
        (
            "data/order.py",
            "from rose_jax.train import step",
            "Rooms form layers: a room imports only those below it",
            "rose_jax.data.order -> rose_jax.train.step",
        ),
        ("train/losses.py", "import flax", "Only models/ imports flax", "rose_jax.train.losses -> flax"),
        (
            "runtime/files.py",
            "import orbax.checkpoint",
            "Only runtime/checkpoint.py imports Orbax",
            "rose_jax.runtime.files -> orbax",
        ),
    ],
    ids=["layers", "flax", "orbax"],
)
def test_an_import_that_breaks_a_contract_is_found(tmp_path, file, line, contract, import_):
    shutil.copytree(ROOT / "rose_jax", tmp_path / "rose_jax", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "rose_jax" / file).open("a") as source:
        source.write(f"{line}\n")
    found = lint(tmp_path)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"{contract} BROKEN" in found.stdout
    assert "2 kept, 1 broken" in found.stdout
    assert import_ in found.stdout


def test_one_file_builds_a_mesh():
    """By any name: whoever imports one of these, or asks a module for it, counts."""
    makers = {"Mesh", "make_mesh"}
    builders = set()
    for path in (ROOT / "rose_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, field, None) for field in ("id", "attr", "name")}
            if names & makers:
                builders.add(path.relative_to(ROOT / "rose_jax").as_posix())
    assert builders == {"runtime/sharding.py"}
