"""Writes the report of finished runs (tables, figures, one HTML page) from the files in their workdirs alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_jax.errors import UserError
from rose_jax.report import compare, figures, html, tables
from rose_jax.report.runs import load
from rose_jax.runtime.files import write_atomic, write_text


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
    runs = [load(workdir) for workdir in workdirs]
    groups = compare.group(runs)
    out = Path(out)
    pictures = [figures.draw([group]) for group in groups]
    overview = pictures[0] if len(groups) == 1 else figures.draw(groups, ["curves"])
    drawn = [_save(out / "figures" / f"{name}.png", picture.light) for name, picture in overview.items()]
    write_text(out / "report.csv", tables.to_csv(runs))
    write_text(out / "report.md", html.render_markdown(groups, list(overview)))
    write_text(out / "report.html", html.render(groups, pictures, overview))
    return Report(html=out / "report.html", figures=drawn, text=_text(groups))


def _save(path: Path, data: bytes) -> Path:
    write_atomic(path, lambda file: file.write(data))
    return path


def _text(groups: Sequence[compare.Group]) -> str:
    blocks = [f"{html.sentence(group)}\n\n{tables.text(tables.methods(group))}" for group in groups]
    if len(groups) > 1:
        blocks.append(tables.text(tables.comparison(groups)))
    return "\n\n".join(blocks)
