"""The two pages of a report: report.html, self-contained, without scripts or anything from elsewhere, and report.md."""

import base64
from collections.abc import Sequence
from html import escape

from rose_jax.report import tables
from rose_jax.report.content import Picture, Section
from rose_jax.report.tables import Table, escape_markdown

MOST_WIDE = 12  # columns with room around them
LONG_CELL = 24  # characters of a cell that may break into lines
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def to_html(document: Sequence[Section]) -> str:
    """The whole page. Its policy forbids the browser to fetch anything, whatever a name may contain."""
    title = " | ".join(section.heading for section in document if section.level == 1)
    body = "".join(_section(section) for section in document).removeprefix("<hr>")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>rose_jax: {escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def to_markdown(document: Sequence[Section]) -> str:
    """The same for a README, but for what is folded away and for figures that have no file."""
    parts = []
    for section in document:
        content = [escape_markdown(text) for text in (*section.text, section.mark)]
        if section.picture and section.picture.name:
            content.append(f"![{escape_markdown(section.picture.caption)}](figures/{section.picture.name}.png)")
        content += [tables.markdown(table) for table in section.tables if table]
        content += ["\n".join(f"- **{escape_markdown(a)}**: {escape_markdown(b)}" for a, b in section.terms)]
        # Code by indentation: a name in it could hold the backticks that would end a fenced block.
        content += ["    " + text.replace("\n", "\n    ") for summary, text in section.code if not summary]
        if any(content):
            parts += [f"{'#' * section.level} {escape_markdown(section.heading)}", *filter(None, content)]
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    parts = [f"<p>{escape(text)}</p>" for text in section.text if text]
    if section.mark:
        parts.append(f'<p class="mark">{escape(section.mark)}</p>')
    if section.picture:
        parts.append(_figure(section.picture))
    listed = [_table(table) for table in section.tables if table]
    if section.folded and listed:
        summary = f"<summary>{escape(section.folded)}</summary>"
        listed = ["<details>" + summary + "".join(listed) + "</details>"]
    parts += listed
    if section.terms:
        parts.append(f"<dl>{''.join(f'<dt>{escape(a)}</dt><dd>{escape(b)}</dd>' for a, b in section.terms)}</dl>")
    for summary, text in section.code:
        block = f"<pre>{escape(text)}</pre>"
        parts.append(f"<details><summary>{escape(summary)}</summary>{block}</details>" if summary else block)
    if not parts:
        return ""
    content = "\n".join([f"<h{section.level}>{escape(section.heading)}</h{section.level}>", *parts])
    return f"<hr>\n{content}\n" if section.level == 1 else f"<section>\n{content}\n</section>\n"


def _figure(picture: Picture) -> str:
    """In the colours that suit the reader's colour scheme."""
    assert picture.painted is not None
    pngs = (picture.painted.light, picture.painted.dark)
    light, dark = ("data:image/png;base64," + base64.b64encode(png).decode() for png in pngs)
    caption = escape(picture.caption)
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{caption}"></picture><figcaption>{caption}</figcaption></figure>'
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(_row(row, [c for r, c in table.best if r == i]) for i, row in enumerate(table.rows))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
    kind = ' class="dense"' if len(table.header) > MOST_WIDE else ""
    return f'<div class="scroll"><table{kind}>{body}</table></div>{notes}'


def _row(row: tuple[str, ...], best: Sequence[int]) -> str:
    shown = [f"<b>{escape(cell)}</b>" if c in best else escape(cell) for c, cell in enumerate(row)]
    long = [' class="long"' if len(cell) > LONG_CELL else "" for cell in row]
    cells = "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(long[1:], shown[1:], strict=True))
    return f'<tr><th scope="row">{shown[0]}</th>{cells}</tr>'


CSS = """
:root {
  --ink: #1b1f24; --soft: #5b636d; --line: #d8dce1;
  --paper: #ffffff; --mark: #b34700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e3e6ea; --soft: #a2aab4; --line: #343a42;
    --paper: #14171b; --mark: #ff9c5b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; max-width: 46rem; }
.note, figcaption { color: var(--soft); font-size: .88rem; }
.mark { color: var(--mark); border-left: 3px solid var(--mark); padding-left: .7rem; font-weight: 600; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child { text-align: left; padding-left: .3rem; position: sticky; left: 0; background: var(--paper); }
thead th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
.dense th, .dense td { padding: .3rem .4rem; font-size: .84rem; }
tbody th { font-weight: 500; max-width: 18rem; overflow: hidden; text-overflow: ellipsis; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
td b { font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; font-size: .92rem; max-width: 54rem; }
dt { font-weight: 600; }
dd { margin: 0; }
figure { margin: .8rem 0; }
img { max-width: 100%; height: auto; display: block; }
pre { background: color-mix(in srgb, var(--line) 35%, transparent); padding: .7rem .9rem; border-radius: 6px;
  font-size: .85rem; overflow-x: auto; white-space: pre-wrap; margin: .5rem 0; }
summary { cursor: pointer; }
hr { border: 0; border-top: 1px solid var(--line); margin: 3rem 0 2rem; }
@media (max-width: 40rem) {
  h1 { font-size: 1.3rem; }
  th, td { padding: .3rem .5rem; }
  tbody th { max-width: 9rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin: 0 0 .5rem; }
}
@media print { details > * { display: block; } }
"""
