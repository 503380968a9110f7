"""Reads a run's studies/*.json for the report. Files that no study of ours has written are left out."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rose_jax.report.compare import Group
from rose_jax.report.runs import one_line
from rose_jax.report.tables import Table

SCHEMA = 1


class StudyFile(NamedTuple):
    name: str
    title: str
    paper: str  # the table or figure of the paper that it stands beside
    says: str  # what came out, in a sentence
    table: Table
    figure: Mapping[str, Any]  # plain data, see plots.py


def of(group: Group) -> list[StudyFile]:
    """Each study once, from the first run that has it; if the group has several runs, the title names the seed."""
    found: dict[str, StudyFile] = {}
    for run in group.runs:
        seed = f" (seed {one_line(run.seed)})" if len(group.runs) > 1 else ""
        for path in sorted((run.workdir / "studies").glob("*.json")):
            study = read(path)
            if study:
                found.setdefault(study.name, study._replace(title=study.title + seed))
    return list(found.values())


def read(path: Path) -> StudyFile | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        # The study's name becomes the name of the figure's file, so it must be a plain word.
        if raw["schema"] != SCHEMA or not re.fullmatch(r"[a-z][a-z0-9_]*", raw["study"]):
            return None
        table = raw["table"]
        header, *rows = (tuple(one_line(cell) for cell in row) for row in (table["header"], *table["rows"]))
        if not header or any(len(row) != len(header) for row in rows) or not isinstance(raw["figure"], dict):
            return None
        title, paper, says = (one_line(raw[key]) for key in ("title", "paper", "says"))
        notes = tuple(one_line(note) for note in table["notes"])
        return StudyFile(raw["study"], title, paper, says, Table(header, tuple(rows), notes), raw["figure"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
