"""Writes the report of finished runs (tables, figures, one HTML page) from the files in their workdirs alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_jax.errors import UserError
from rose_jax.report import compare, content, latex, page, plots, tables
from rose_jax.report.runs import load
from rose_jax.runtime.files import check_folder, write_atomic, write_text


@dataclass(frozen=True)
class Report:
    html: Path
    figures: list[Path]
    text: str  # the table of methods, aligned for the terminal


def write(workdir: str | os.PathLike[str]) -> Report:
    """report.html, report.md, report.csv and figures/* in `workdir`, from its results.json."""
    return write_several([workdir], workdir)


def write_several(
    workdirs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], with_latex: bool = False
) -> Report:
    """One report in `out` for several runs; those that differ in the seed alone are averaged.

    Figures are there as PNG, and for papers as PDF and SVG. with_latex: also report.tex, with every table.
    """
    if not workdirs:
        raise UserError("No run to report: name at least one workdir that holds a results.json.")
    runs, out = [load(workdir) for workdir in workdirs], Path(out)
    check_folder("--out", out)
    groups = compare.group(runs)
    document = [section._replace(picture=_painted(section.picture)) for section in content.document(groups)]
    figures = []
    for picture in (s.picture for s in document if s.picture and s.picture.name):
        assert picture.painted is not None
        figures.append(out / "figures" / f"{picture.name}.png")
        _save(figures[-1], picture.painted.light)
        _save(figures[-1].with_suffix(".pdf"), picture.painted.pdf)
        _save(figures[-1].with_suffix(".svg"), picture.painted.svg)
    write_text(out / "report.csv", tables.to_csv(runs))
    classes = tables.per_class_csv(runs)
    if classes:
        write_text(out / "per_class.csv", classes)
    if with_latex:
        write_text(out / "report.tex", latex.to_latex(document))
    write_text(out / "report.md", page.to_markdown(document))
    write_text(out / "report.html", page.to_html(document))
    blocks = [f"{content.sentence(group)}\n\n{tables.text(tables.methods(group))}" for group in groups]
    if len(groups) > 1:
        blocks.append(tables.text(tables.comparison(groups)))
    return Report(html=out / "report.html", figures=figures, text="\n\n".join(blocks))


def _painted(picture: content.Picture | None) -> content.Picture | None:
    """None if there is nothing to draw."""
    if picture is None:
        return None
    painted = plots.paint(picture.data, picture.name)
    return picture._replace(painted=painted) if painted else None


def _save(path: Path, data: bytes) -> None:
    write_atomic(path, lambda file: file.write(data))
