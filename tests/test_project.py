"""What others need to use and cite the project: licence, citation, platforms."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_licence_and_citation_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    paper = cited["preferred-citation"]
    assert paper["title"].startswith("Restoring Forgotten Knowledge")
    assert [author["family-names"] for author in paper["authors"]] == ["Lu", "Cao", "Huang", "Wang", "Yang", "Liu"]
    assert paper["url"] == project["urls"]["Paper"]


def test_platforms_are_stated():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    systems = [text for text in project["classifiers"] if text.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux", "Operating System :: MacOS"]
    assert "fcntl" in (ROOT / "docs/your_own_data.md").read_text()
