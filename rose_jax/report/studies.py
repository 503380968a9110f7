"""What studies/*.json of a run holds, for the report: a file that is not one of ours is left out."""

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
RESERVED = ("confusion", "matrix", "drift_cosines", "cost")  # figures of the report itself


@dataclass(frozen=True)
class StudyFile:
    name: str
    title: str
    paper: str  # the table or figure of the paper that it stands beside
    says: str  # what came out, in a sentence
    table: Table
    figure: Mapping[str, Any] | None  # plain data, see plots.py; None where the report shows it anyway
    seconds: float

    @property
    def heading(self) -> str:
        return f"Study {self.name}: {self.title}"

    def draw(self, group_title: str) -> Figure | None:
        return plots.draw(self.figure, style.title(group_title, self.title)) if self.figure else None

    def caption(self) -> str:
        beside = f"Beside the paper's {self.paper}." if self.paper else "Not in the paper."
        return f"{self.title[:1].upper()}{self.title[1:]}. {beside}"


def sentence(group: Group, name: str) -> str:
    """What a study says; "" if the run has not been asked."""
    return next((study.says for study in of(group) if study.name == name), "")


def of(group: Group) -> tuple[StudyFile, ...]:
    """Each study once, from the first run that has it; with several runs the title says which."""
    found: dict[str, StudyFile] = {}
    for run in group.runs:
        for study in load(run.workdir):
            if len(group.runs) > 1 and study.name != "seeds":
                study = dataclasses.replace(study, title=f"{study.title} (seed {one_line(run.seed)})")
            found.setdefault(study.name, study)
    return tuple(found.values())


def load(workdir: Path) -> tuple[StudyFile, ...]:
    """Every study of a run, in the order of their names."""
    found = (read(path) for path in sorted((workdir / "studies").glob("*.json")))
    return tuple(study for study in found if study is not None)


def read(path: Path) -> StudyFile | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema"] != SCHEMA:
            return None
        if not re.fullmatch(r"[a-z][a-z0-9_]*", raw["study"]) or raw["study"] in RESERVED:
            return None  # it becomes the name of a file
        table = raw["table"]
        header = tuple(one_line(cell) for cell in table["header"])
        rows = tuple(tuple(one_line(cell) for cell in row) for row in table["rows"])
        if not header or any(len(row) != len(header) for row in rows):
            return None
        return StudyFile(
            name=one_line(raw["study"]),
            title=one_line(raw["title"]),
            paper=one_line(raw["paper"]),
            says=one_line(raw["says"]),
            table=Table(header, rows, tuple(one_line(note) for note in table["notes"])),
            figure=raw["figure"] if isinstance(raw["figure"], dict) else None,
            seconds=float(raw["seconds"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def to_csv(table: Table) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([table.header, *table.rows])
    return buffer.getvalue()
