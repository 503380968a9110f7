"""results.json names the code that wrote it."""

import importlib.metadata
import subprocess

import pytest

from rose_jax.runtime import code

NUMBER = importlib.metadata.version("rose-jax")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder `package` in a repository, and how to call git there."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # as a hook would have them
        monkeypatch.delenv(name, raising=False)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "notes").write_text("")

    def git(*arguments):
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    return package, git


def test_a_checkout_has_its_commit_and_says_whether_the_package_differs(checkout):
    package, git = checkout
    git("add", ".")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert code.version(package) == f"{NUMBER}, commit {commit}"
    (package.parent / "notes").write_text("beside the package")
    assert code.version(package) == f"{NUMBER}, commit {commit}"
    (package / "__init__.py").write_text("changed = True")
    assert code.version(package) == f"{NUMBER}, commit {commit} and changes"


def test_an_installed_package_does_not_take_the_commit_of_the_folder_it_lies_in(checkout):
    package, git = checkout
    git("add", "notes")
    git("commit", "-m", "somebody else's")
    assert code.version(package) == NUMBER


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_without_a_checkout_or_without_git_there_is_the_number_alone(tmp_path, monkeypatch, path):
    if path:
        monkeypatch.setenv("PATH", path)
    (tmp_path / "__init__.py").write_text("")
    assert code.version(tmp_path) == NUMBER
