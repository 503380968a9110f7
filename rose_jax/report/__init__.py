"""Writes the report of finished runs (tables, figures, one HTML page) from the files in their workdirs alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_jax.errors import UserError
from rose_jax.report import compare, content, page, plots, tables
from rose_jax.report.runs import load
from rose_jax.runtime.files import check_folder, write_atomic, write_text


@dataclass(frozen=True)
class Report:
    html: Path
    figures: list[Path]
    text: str  # the table of methods, aligned for the terminal


def write(workdir: str | os.PathLike[str]) -> Report:
    """report.html, report.md, report.csv and figures/*.png in `workdir`, from its results.json."""
    return write_several([workdir], workdir)


def write_several(workdirs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Report:
    """One report in `out` for several runs; those that differ in the seed alone are averaged."""
    if not workdirs:
        raise UserError("No run to report: name at least one workdir that holds a results.json.")
    runs, out = [load(workdir) for workdir in workdirs], Path(out)
    check_folder("--out", out)
    groups = compare.group(runs)
    document = [section._replace(picture=_painted(section.picture)) for section in content.document(groups)]
    figures = {
        out / "figures" / f"{s.picture.name}.png": s.picture for s in document if s.picture and s.picture.name
    }
    for path, picture in figures.items():
        _save(path, picture.painted[0])
    write_text(out / "report.csv", tables.to_csv(runs))
    write_text(out / "report.md", page.to_markdown(document))
    write_text(out / "report.html", page.to_html(document))
    blocks = [f"{content.sentence(group)}\n\n{tables.text(tables.methods(group))}" for group in groups]
    if len(groups) > 1:
        blocks.append(tables.text(tables.comparison(groups)))
    return Report(html=out / "report.html", figures=list(figures), text="\n\n".join(blocks))


def _painted(picture: content.Picture | None) -> content.Picture | None:
    """None if there is nothing to draw."""
    if picture is None:
        return None
    light, dark = (plots.png(picture.data, picture.title, theme) for theme in ("light", "dark"))
    return picture._replace(painted=(light, dark)) if light and dark else None


def _save(path: Path, data: bytes) -> None:
    write_atomic(path, lambda file: file.write(data))
