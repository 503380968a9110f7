"""Reads a run's studies/*.json for the report. Files that no study of ours has written are left out."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rose_jax.report import plots, style
from rose_jax.report.compare import Group
from rose_jax.report.runs import one_line
from rose_jax.report.tables import Table

SCHEMA = 1
RESERVED = (
    "curves",
    "old_new",
    "confusion",
    "matrix",
    "drift_cosines",
    "cost",
)  # names of the report's own figures


@dataclass(frozen=True)
class StudyFile:
    name: str
    title: str
    paper: str  # the table or figure of the paper that it stands beside
    says: str  # what came out, in a sentence
    table: Table
    figure: Mapping[str, Any]  # plain data, see plots.py

    @property
    def heading(self) -> str:
        return f"Study {self.name}: {self.title}"

    def draw(self, group_title: str) -> Figure | None:
        return plots.draw(self.figure, style.title(group_title, self.title))

    def caption(self) -> str:
        beside = f"Beside the paper's {self.paper}." if self.paper else "Not in the paper."
        return f"{self.title[:1].upper()}{self.title[1:]}. {beside}"


def of(group: Group) -> tuple[StudyFile, ...]:
    """Each study once, from the first run that has it; if the group has several runs, the title names the seed."""
    found: dict[str, StudyFile] = {}
    for run in group.runs:
        for study in load(run.workdir):
            if len(group.runs) > 1:
                study = dataclasses.replace(study, title=f"{study.title} (seed {one_line(run.seed)})")
            found.setdefault(study.name, study)
    return tuple(found.values())


def load(workdir: Path) -> tuple[StudyFile, ...]:
    """Every study of a run, in the order of the files' names."""
    found = (read(path) for path in sorted((workdir / "studies").glob("*.json")))
    return tuple(study for study in found if study is not None)


def read(path: Path) -> StudyFile | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            return None
        # The study's name becomes the name of the figure's file, so it must be a plain word that is not taken.
        if not re.fullmatch(r"[a-z][a-z0-9_]*", raw["study"]) or raw["study"] in RESERVED:
            return None
        table = raw["table"]
        header = tuple(one_line(cell) for cell in table["header"])
        rows = tuple(tuple(one_line(cell) for cell in row) for row in table["rows"])
        if not header or any(len(row) != len(header) for row in rows) or not isinstance(raw["figure"], dict):
            return None
        return StudyFile(
            name=one_line(raw["study"]),
            title=one_line(raw["title"]),
            paper=one_line(raw["paper"]),
            says=one_line(raw["says"]),
            table=Table(header, rows, tuple(one_line(note) for note in table["notes"])),
            figure=raw["figure"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def to_csv(table: Table) -> str:
    """The header and rows of a study's table; its notes are left out."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([table.header, *table.rows])
    return buffer.getvalue()
