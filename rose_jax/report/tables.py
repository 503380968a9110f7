"""Makes the tables of a report, each a plain value `Table`, and prints them as aligned text, Markdown or CSV.

LaTeX is in latex.py, HTML in page.py.
"""

import csv
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rose_jax.report import paper
from rose_jax.report.compare import Group, Spread, flatten, identity, spread
from rose_jax.report.runs import Run, one_line

NOT_THE_PAPERS = "* a row of ours: not in the paper"
RIVALS = ("base", "projector", "gd")  # on the same encoders as rose
PUBLISHED = "† a method published by others: not in the paper"

_COLUMNS = {  # heading: field of Score, decimals
    "last": ("last", 2),
    "average": ("average", 2),
    "old": ("old", 2),
    "new": ("new", 2),
    "forgetting": ("forgetting", 2),
    "drift cos": ("drift_cosine", 3),
    "ms/image": ("ms_per_image", 3),
}


@dataclass(frozen=True)
class Table:
    """Headings, rows of ready text (the first column a name, the others numbers) and notes to print below."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: tuple[tuple[int, int], ...] = ()  # (row, column) of what is set in bold


def with_best(table: Table, lower: Sequence[str] = (), leave: Sequence[str] = ()) -> Table:
    """The best number of every column in bold, whoever's row it is; of equal ones all, of a single one none.

    lower: headings of columns whose lowest number is the best. leave: columns without a best.
    """
    columns = [(c, name) for c, name in enumerate(table.header) if c and name not in leave]
    cells = [([(r, c) for r in range(len(table.rows))], name in lower) for c, name in columns]
    return replace(table, best=tuple(place for line, low in cells for place in _best_of(table, line, low)))


def _best_of(table: Table, places: Sequence[tuple[int, int]], lowest: bool = False) -> list[tuple[int, int]]:
    numbers = {(r, c): _leading_number(table.rows[r][c]) for r, c in places}
    known = {place: value for place, value in numbers.items() if value is not None}
    if len(set(known.values())) < 2:
        return []
    best = min(known.values()) if lowest else max(known.values())
    return [place for place, value in known.items() if value == best]


def _leading_number(cell: str) -> float | None:
    """12.34 of "12.34 ± 0.56"; None of "-"."""
    try:
        return float(cell.split()[0])
    except (ValueError, IndexError):
        return None


def methods(group: Group) -> Table:
    """Every scored method, beside it the paper's last accuracy where there is one.

    For RoSE over several seeds that is the paper's mean ± deviation over three seeds.
    """
    setting, rows = group.runs[0].paper_setting, []
    over_seeds = {"rose": paper.several_seeds(*setting)} if len(group.runs) > 1 else {}
    for name in group.methods:
        cell = over_seeds.get(paper.canonical(name)) or paper.lookup(*setting, name)
        numbers = [_number(group.over_seeds(name, key), digits) for key, digits in _COLUMNS.values()]
        printed = (_printed(cell), paper.place(cell.table)) if cell else ("", "")
        rows.append((name + group.mark(name), *numbers, *printed))
    header = ("method", *_COLUMNS, "paper", "its table")
    table = _without_empty(header, rows, ("method", "last", "average"), _notes(group))
    return with_best(table, lower=("forgetting", "ms/image"), leave=("paper", "its table"))


def beside_paper(group: Group) -> Table | None:
    """The paper's main table for this setting row by row, ours beside it; None if the paper has no such setting."""
    run = group.runs[0]
    ours = {paper.canonical(name): group.over_seeds(name, "last") for name in group.methods}
    rows = []
    for cell in paper.main_table(*run.paper_setting):
        mine = ours.get(cell.method)
        gap = f"{mine.mean - cell.value:+.2f}" if mine and cell.value is not None else ""
        rows.append((paper.label(cell.method), _printed(cell), _number(mine, 2), gap))
    if not rows:
        return None
    notes = [f"Last accuracy in per cent. Paper: its {paper.place(paper.MAIN_TABLES[run.start])}."]
    seeds = paper.several_seeds(*run.paper_setting)
    if seeds:
        notes.append(f"Over three seeds the paper reports RoSE {_printed(seeds)} ({paper.place(seeds.table)}).")
    table = Table(("method", "paper", "ours", "ours - paper"), tuple(rows), (*notes, *_reduced(run)))
    return with_best(table, leave=("ours - paper",))


def stages(group: Group) -> Table | None:
    """Accuracy over all seen classes after each task; None if no method has it."""
    count = max((len(s.per_stage) for m in group.methods for s in group.scores(m)), default=0)
    rows = []
    for name in group.methods:
        steps = itertools.zip_longest(range(count), *(score.per_stage for score in group.scores(name)))
        rows.append((name + group.mark(name), *(_number(spread(values), 1) for _, *values in steps)))
    return with_best(Table(("after task", *(str(t + 1) for t in range(count))), tuple(rows))) if count else None


def per_class(group: Group) -> Table | None:
    """Last accuracy on each class, by its name, in the order in which the classes came; the best of a row is bold."""
    run = group.runs[0]
    methods = [m for m in group.methods if any(s.per_class for s in group.scores(m))]
    tasks = [t + 1 for t, size in enumerate(run.task_sizes) for _ in range(size)]
    if not methods or len(tasks) != len(run.class_names):
        return None
    columns = {m: list(itertools.zip_longest(*(s.per_class for s in group.scores(m)))) for m in methods}
    rows = []
    for c, (name, task) in enumerate(zip(run.class_names, tasks, strict=True)):
        cells = [_number(spread(found[c]) if c < len(found) else None, 1) or "-" for found in columns.values()]
        rows.append((name, str(task), *cells))
    header = ("class", "task", *(m + group.mark(m) for m in methods))
    table = Table(header, tuple(rows), ("Accuracy in per cent after the last task.",))
    lines = [[(r, c) for c in range(2, len(header))] for r in range(len(rows))]
    return replace(table, best=tuple(place for line in lines for place in _best_of(table, line)))


def cost(group: Group) -> Table | None:
    """Milliseconds per test image and their ratio to base, which does not evolve: ours, and the paper's Table 6.

    Forwards and backwards are passes of a network per image, the old encoder's included.
    """
    times = {name: group.over_seeds(name, "ms_per_image") for name in group.methods}
    base = next((t.mean for name, t in times.items() if t and paper.canonical(name) == "base"), None)
    paper_base, rows = paper.inference_ms("base"), []
    for name, time in times.items():
        printed = paper.inference_ms(name)
        ratio = f"{time.mean / base:.2f}x" if time and base else ""
        paper_ratio = f"{printed / paper_base:.2f}x" if printed and paper_base else ""
        passes = (_number(group.over_seeds(name, key), 1) for key in ("forwards", "backwards"))
        rows.append((name, _number(time, 3), ratio, *passes, f"{printed:.1f}" if printed else "", paper_ratio))
    header = ("method", "ms/image", "of base", "forwards", "backwards", "paper ms", "paper of base")
    return _without_empty(header, rows, ("method", "ms/image")) if any(times.values()) else None


def training(run: Run) -> Table | None:
    """What results.json says of the training: time, images per second, compilations."""
    rows = []
    for objective, values in run.train.items():
        for key, value in values.items():
            if not isinstance(value, dict | list):
                name = one_line(key).replace("_", " ")
                shown = f"{value:,.1f}" if isinstance(value, float) else one_line("-" if value is None else value)
                rows.append((f"{objective}: {name}" if objective else name, shown))
    return Table(("training", ""), tuple(rows)) if rows else None


def comparison(groups: Sequence[Group]) -> Table:
    """Last accuracy of every method in every group of runs."""
    names = list(dict.fromkeys(name for g in groups for name in g.methods))
    rows = [(name, *(_number(g.over_seeds(name, "last"), 2) or "-" for g in groups)) for name in names]
    notes = ["Last accuracy in per cent."]
    if any(len(g.runs) > 1 for g in groups):
        notes.append("Mean ± sample deviation over seeds.")
    if any(identity(a.runs[0]) == identity(b.runs[0]) for a, b in itertools.combinations(groups, 2)):
        notes.append("Several of the runs have the same config and seed: copies of one run have no deviation.")
    titles = (f"{g.title} (n={len(g.runs)})" if len(g.runs) > 1 else g.title for g in groups)
    return with_best(Table(("method", *titles), tuple(rows), tuple(notes)))


def config_differences(runs: Sequence[Run]) -> Table | None:
    """Every key of the config that is not the same in all runs, with its value in each; None if there is none."""
    flat = [flatten(run.config) for run in runs]
    every = dict.fromkeys(itertools.chain(*flat))
    lines = [(key, *(one_line(config.get(key, "-")) for config in flat)) for key in every]
    rows = tuple(line for line in lines if len(set(line[1:])) > 1)
    header = ("config", *(one_line(run.workdir.resolve().name) for run in runs))
    return Table(header, rows) if rows else None


def text(table: Table) -> str:
    """Aligned columns for the terminal."""
    lines = [table.header, *table.rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for line in lines:
        first, *pads = [" " * (w - _width(cell)) for cell, w in zip(line, widths, strict=True)]
        cells = [pad + cell for pad, cell in zip(pads, line[1:], strict=True)]
        aligned.append("  ".join([line[0] + first, *cells]).rstrip())
    rule = "-" * max(len(line) for line in aligned)
    return "\n".join([aligned[0], rule, *aligned[1:], *table.notes])


def markdown(table: Table) -> str:
    """A GitHub table. Characters of a name that mean something in Markdown are escaped."""
    header, *rows = [[escape_markdown(cell) for cell in line] for line in (table.header, *table.rows)]
    for r, c in table.best:
        rows[r][c] = f"**{rows[r][c]}**"
    rule = ["---", *["---:"] * (len(header) - 1)]
    body = [f"| {' | '.join(line)} |" for line in (header, rule, *rows)]
    return "\n".join([*body, *(f"\n{escape_markdown(note)}" for note in table.notes)])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def to_csv(runs: Sequence[Run]) -> str:
    """One line per run and method with unrounded numbers, then the paper's rows that were not run."""
    keys = [key for key, _ in _COLUMNS.values()]
    setting = ["run", "dataset", "start", "tasks", "label", "seed"]
    rows: list[list[object]] = [[*setting, "method", "origin", *keys, "paper_last", "paper_table"]]
    for run in runs:
        folder = one_line(run.workdir.resolve().name)
        where = [folder, run.dataset, run.start, run.tasks, run.reduced or "full", run.seed]
        for name, score in run.scores.items():
            cell = paper.lookup(*run.paper_setting, name)
            printed = [cell.value, cell.table] if cell else ["", ""]
            rows.append([*where, name, score.origin, *(getattr(score, key) for key in keys), *printed])
        done = {paper.canonical(name) for name in run.scores}
        others = [cell for cell in paper.main_table(*run.paper_setting) if cell.method not in done]
        rows += [[*where, cell.method, "paper", *[""] * len(keys), cell.value, cell.table] for cell in others]
    return csv_text(rows)


def per_class_csv(runs: Sequence[Run]) -> str:
    """One line per run, method and class with unrounded accuracies; "" if no run has them."""
    rows = [
        [one_line(run.workdir.resolve().name), run.seed, name, label, accuracy]
        for run in runs
        for name, score in run.scores.items()
        for label, accuracy in zip(run.class_names, score.per_class, strict=False)
    ]
    return csv_text([["run", "seed", "method", "class", "accuracy"], *rows]) if rows else ""


def _notes(group: Group) -> list[str]:
    marks = {group.mark(name).strip() for name in group.methods}
    notes = [note for note in (NOT_THE_PAPERS, PUBLISHED) if note[0] in marks]
    if len(group.runs) > 1:
        seeds = ", ".join(one_line(r.seed) for r in group.runs)
        notes.append(f"Mean ± sample deviation over {len(group.runs)} runs (seeds {seeds}).")
        counts = {name: len(group.scores(name)) for name in group.methods}
        partly = [f"{name} in {count}" for name, count in counts.items() if count < len(group.runs)]
        if partly:
            notes.append(f"Not in every run: {', '.join(partly)}.")
        gaps = [f"rose minus {row} {gap.text(sign='+')}" for row, gap in _gaps(group, "rose", RIVALS).items()]
        if gaps:
            notes.append(f"Gaps within a run: {', '.join(gaps)}.")
    return [*notes, *group.events(), *_reduced(group.runs[0])]


def _gaps(group: Group, row: str, others: Iterable[str]) -> dict[str, Spread]:
    """By how much a row ends above each of the others: differences within runs, which vary less than the rows do."""
    found = {}
    for other in others:
        pairs = [(r.scores[row].last, r.scores[other].last) for r in group.runs if {row, other} <= {*r.scores}]
        gap = spread(mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None)
        if gap:
            found[other] = gap
    return found


def _reduced(run: Run) -> list[str]:
    """A thin or smoke run trains too little for its accuracies to stand beside the paper's."""
    label = one_line(run.reduced).capitalize()
    return [f"{label} run: compare gaps with the paper, not levels."] if run.reduced else []


def _number(value: Spread | None, digits: int) -> str:
    return value.text(digits) if value else ""


def _printed(cell: paper.Cell) -> str:
    return "-" if cell.value is None else Spread(cell.value, cell.std).text()


def _without_empty(
    header: Sequence[str], rows: Sequence[Sequence[str]], keep: Sequence[str], notes: Sequence[str] = ()
) -> Table:
    """A table without the columns that are empty in every row, unless they are in `keep`.

    The paper has no number for the digits, for example, and after a single task no class is old.
    """
    kept = [c for c, name in enumerate(header) if name in keep or any(row[c] for row in rows)]
    cells = tuple(tuple(row[c] or "-" for c in kept) for row in rows)
    return Table(tuple(header[c] for c in kept), cells, tuple(notes))


def _width(cell: str) -> int:
    """Columns of a terminal: a wide character, such as a Chinese one, takes two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in cell)


def escape_markdown(cell: str) -> str:
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", cell).replace("<", "&lt;").replace(">", "&gt;")
