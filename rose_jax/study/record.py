"""Writes what a study found: studies/NAME.json and NAME.csv, figures/NAME.png."""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import jax

from rose_jax.report import figures, studies
from rose_jax.report.compare import short_title
from rose_jax.runtime.files import write_atomic, write_json, write_text
from rose_jax.study.subject import Finding, Subject


def write(name: str, title: str, paper: str, subject: Subject, finding: Finding, seconds: float) -> Path:
    """Each file is replaced as a whole, so that a stop never leaves half of one. The report is not written here."""
    folder = subject.workdir / "studies"
    path = folder / f"{name}.json"
    write_json(
        path,
        {
            "schema": studies.SCHEMA,
            "study": name,
            "title": title,
            "paper": paper,
            "says": finding.says,
            "inputs": inputs(subject),
            "seed": subject.run.seed,
            "options": finding.options,
            "numbers": finding.numbers,
            "table": dataclasses.asdict(finding.table),
            "figure": finding.figure,
            "seconds": round(seconds, 2),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "jax": jax.__version__,
        },
    )
    write_text(folder / f"{name}.csv", studies.to_csv(finding.table))
    written = studies.read(path)
    picture = figures.png(lambda: written.draw(short_title(subject.run)), "light") if written else None
    if picture is not None:
        write_atomic(subject.workdir / "figures" / f"{name}.png", lambda file: file.write(picture))
    return path


def inputs(subject: Subject) -> dict[str, Any]:
    """What the numbers were made from: the setting, and a digest of every encoder that the study used."""
    keys = ("dataset", "start", "tasks", "split", "data", "label", "config_name")
    setting = {key: subject.run.setting.get(key) for key in keys}
    encoders = {
        objective: [bench.bank.snapshots[k].digest() for k in range(bench.stages)]
        for objective, bench in subject.used.items()
    }
    return setting | {"encoders": encoders}
