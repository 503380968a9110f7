"""report.tex: the tables and figures of a report for a paper, to be copied from or read by \\input."""

import re
from collections.abc import Sequence

from rose_jax.report.content import Section
from rose_jax.report.tables import Table

MOST_ROWS = 40  # of a table that still fits a page

HEAD = r"""% Tables and figures of a report of rose_jax. Needs \usepackage{booktabs,graphicx}; figures lie in figures/.
"""
_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
}


def to_latex(document: Sequence[Section]) -> str:
    """Every table, its best values in bold, and every figure that has a file, each with its caption."""
    parts, heading = [HEAD], ""
    for section in document:
        if section.level == 1:
            heading = section.heading
            parts.append(f"% {_one_line(heading)}\n")
        if section.picture and section.picture.name:
            parts.append(figure(section.picture.name, f"{heading}. {section.picture.caption}"))
        for table in filter(None, section.tables):
            if len(table.rows) > MOST_ROWS:
                parts.append(f"% {_one_line(section.heading)}: {len(table.rows)} rows, see report.md\n")
            else:
                parts.append(tabular(table, f"{heading}: {section.heading[:1].lower()}{section.heading[1:]}."))
    return "\n".join(parts)


def tabular(table: Table, caption: str) -> str:
    header, *rows = [[escape(cell) for cell in line] for line in (table.header, *table.rows)]
    for r, c in table.best:
        rows[r][c] = rf"\textbf{{{rows[r][c]}}}"
    lines = [" & ".join(line) + r" \\" for line in rows]
    notes = " ".join(escape(note.rstrip(".") + ".") for note in table.notes)
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escape(caption)}{' ' + notes if notes else ''}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            " & ".join(header) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def figure(name: str, caption: str) -> str:
    return "\n".join(
        [
            r"\begin{figure}[t]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{figures/{name}.pdf}}",
            rf"\caption{{{escape(caption)}}}",
            r"\end{figure}",
            "",
        ]
    )


def escape(text: str) -> str:
    """A name may hold anything, and LaTeX would run some of it."""
    return "".join(_SPECIAL.get(c, c) for c in text)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
