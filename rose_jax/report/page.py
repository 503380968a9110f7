"""The frame of report.html: one self-contained page without scripts, fonts or anything from elsewhere."""

import base64
from html import escape

from rose_jax.report import style
from rose_jax.report.tables import Table

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, body: str) -> str:
    """A whole document. The policy forbids the browser to fetch anything, whatever a name may contain."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def section(heading: str, *parts: str) -> str:
    """A titled section of the parts that are not empty; nothing at all if none has content."""
    content = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>\n" if content else ""


def table(value: Table | None) -> str:
    if value is None:
        return ""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in value.header)
    rows = "\n".join(_row(row) for row in value.rows)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in value.notes)
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>{notes}'


def figure(light: bytes, dark: bytes, description: str) -> str:
    """The picture that suits the reader's colour scheme."""
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_data(dark)}">'
        f'<img src="{_data(light)}" alt="{escape(description)}"></picture>'
        f"<figcaption>{escape(description)}</figcaption></figure>"
    )


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def code(text: str, summary: str = "") -> str:
    """Verbatim text, folded away behind `summary` if there is one."""
    block = f"<pre>{escape(text)}</pre>"
    return f"<details><summary>{escape(summary)}</summary>{block}</details>" if summary else block


def _row(row: tuple[str, ...]) -> str:
    kind = ' class="emphasis"' if style.look(row[0].strip(" *")).stands_out else ""
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f'<tr{kind}><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


CSS = """
:root {
  --ink: #1b1f24; --soft: #5b636d; --line: #d8dce1;
  --paper: #ffffff; --tint: #fbf0e9; --mark: #b34700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e3e6ea; --soft: #a2aab4; --line: #343a42;
    --paper: #14171b; --tint: #2b1d14; --mark: #ff9c5b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
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
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 500; max-width: 18rem; overflow: hidden; text-overflow: ellipsis; }
tr.emphasis > * { background: var(--tint); font-weight: 700; }
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
}
@media print { details > * { display: block; } }
"""
