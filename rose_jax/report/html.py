"""The content of report.html and report.md: setting, paper beside ours, methods, figures, how to repeat it."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rose_jax.report import page, paper, studies, tables
from rose_jax.report.compare import Group, points
from rose_jax.report.figures import Picture
from rose_jax.report.runs import Run, one_line
from rose_jax.report.tables import Table

Pictures = Mapping[str, Picture]

# The report's own figures by name, in the order of the page: heading and caption.
FIGURES = {
    "curves": (
        "Accuracy after each task",
        "Accuracy over all classes seen so far, after each task. The legend gives the last value.",
    ),
    "old_new": (
        "Old and new classes",
        "Last accuracy on old and new classes. After a cold start the last task's classes are new, after a warm start "
        "those of all tasks but the first. The paper's fig:oldnew has base, projector, RoSE and LDC (cold) or FCS (warm).",
    ),
    "confusion": (
        "Confusion by task",
        "Confusion by task after the last stage: to which tasks the images of each task are assigned.",
    ),
    "matrix": (
        "Accuracy matrix",
        "Accuracy on each task after each stage; a number that falls down a column is forgetting.",
    ),
    "drift_cosines": (
        "Drift",
        "Cosine between the estimated and the true move of every old prototype in the last stage.",
    ),
    "cost": ("Cost", "Time per test image, test-time evolution included."),
}


class Section(NamedTuple):
    """A section of the report. Whatever of it the run has no data for is left out."""

    heading: str
    tables: Sequence[Table | None] = ()
    figure: str = ""  # its name: figures/NAME.png
    caption: str = ""
    text: str = ""


def render(groups: Sequence[Group], pictures: Sequence[Pictures], overview: Pictures) -> str:
    """One page: of several groups first the comparison, with the figure in `overview`, then each group in full."""
    title = " | ".join(g.title for g in groups)
    parts = [f"<h1>{page.escape(_heading(groups))}</h1>"]
    if len(groups) > 1:
        runs = [run for g in groups for run in g.runs]
        parts += [page.paragraph(f"{one_line(g.title)}: {sentence(g)}") for g in groups]
        parts.append(page.section("Last accuracy side by side", page.table(tables.comparison(groups))))
        heading, caption = FIGURES["curves"]
        parts.append(page.section(heading, _figure("curves", overview, caption)))
        parts.append(page.section("What differs in the configs", page.table(tables.config_differences(runs))))
    for group, own in zip(groups, pictures, strict=True):
        if len(groups) > 1:
            parts.append(f"<hr>\n<h1>{page.escape(group.title)}</h1>")
        parts.append(_group(group, own))
    return page.page(f"rose_jax: {title}", "\n".join(parts))


def render_markdown(groups: Sequence[Group], figures: Sequence[str]) -> str:
    """The same tables for a README; `figures` are the names under figures/."""
    parts = [f"# {_plain(_heading(groups))}"]
    if len(groups) > 1:
        parts += ["## Last accuracy side by side", tables.markdown(tables.comparison(groups))]
        parts += [f"![{FIGURES[name][1]}](figures/{name}.png)" for name in figures]
    for group in groups:
        if len(groups) > 1:
            parts.append(f"# {_plain(group.title)}")
        parts.append(_plain(sentence(group)))
        for section in sections(group):
            content = [_plain(section.text), *(tables.markdown(table) for table in section.tables if table)]
            if section.figure in figures and len(groups) == 1:
                content.append(f"![{_plain(section.caption)}](figures/{section.figure}.png)")
            if any(content):
                parts += [f"## {_plain(section.heading)}", *content]
    for run in (run for g in groups for run in g.runs):
        parts += [f"## How to repeat {_plain(one_line(run.workdir.resolve().name))}", _indented(provenance(run))]
    return "\n\n".join(filter(None, parts)) + "\n"


def sections(group: Group) -> list[Section]:
    """What the report shows of a group, in this order; the studies of its runs come last."""
    beside = {"curves": [tables.stages(group)], "cost": [tables.cost(group), tables.training(group.runs[0])]}
    return [
        Section("The paper's table, ours beside it", [tables.beside_paper(group)]),
        Section("Methods", [tables.methods(group)]),
        *(Section(heading, beside.get(name, []), name, caption) for name, (heading, caption) in FIGURES.items()),
        *(Section(one.heading, [one.table], one.name, one.caption(), one.says) for one in studies.of(group)),
    ]


def sentence(group: Group) -> str:
    """The setting in a sentence or two."""
    run = group.runs[0]
    sizes = run.task_sizes
    start = f", {run.start} start" if run.start else ""
    split = f": {sum(sizes)} classes in {_split(sizes)}" if sizes else f": {run.tasks} tasks" if run.tasks else ""
    order = run.setting.get("class_order")
    first = ", ".join(str(c) for c in order[:5]) if isinstance(order, list) else ""
    order_part = f" The class order begins {first}." if first else ""
    seeds = ", ".join(one_line(r.seed) for r in group.runs if r.seed is not None)
    seed_part = f" Seed{'s' if len(group.runs) > 1 else ''} {seeds}." if seeds else ""
    note = f" {run.setting['note']}" if run.setting.get("note") else ""
    return one_line(f"{paper.dataset_label(run.dataset)}{start}{split}.{order_part}{seed_part}{note}")


def finding(group: Group) -> str:
    """One sentence on the paper's claim that RoSE improves on unmoved prototypes; "" without rose or without base."""
    last = {paper.canonical(m): group.over_seeds(m, "last") for m in group.methods}
    rose, base = last.get("rose"), last.get("base")
    if rose is None or base is None:
        return ""
    projector = last.get("projector")
    says = f"RoSE ends at {rose.mean:.1f} % over all classes, {points(rose.mean - base.mean, 1)} prototypes that are never moved"
    if projector:
        says += f" and {points(rose.mean - projector.mean, 1)} those moved by the trained projector"
    return f"{says}."


def provenance(run: Run) -> str:
    """Command, config, seed, versions and device, a line each."""
    environment = {one_line(k): v for k, v in run.environment.items()}
    first = {
        "command": environment.pop("command", None),
        "config": run.setting.get("config_name"),
        "preset": run.setting.get("label"),
        "seed": run.seed,
        "workdir": run.workdir,
    }
    lines = {**first, **environment}
    width = max(len(key) for key in lines)
    return "\n".join(f"{key:<{width}}  {_value(value)}" for key, value in lines.items() if value is not None)


def _group(group: Group, pictures: Pictures) -> str:
    run = group.runs[0]
    parts = [page.paragraph(sentence(group))]
    if run.reduced:
        parts.append(page.paragraph(f"This is a {run.reduced} run, not the paper's full setting.", "mark"))
    if finding(group):
        parts.append(page.paragraph(finding(group)))
    for section in sections(group):
        text = page.paragraph(section.text) if section.text else ""
        figure = _figure(section.figure, pictures, section.caption)
        parts.append(page.section(section.heading, text, figure, *map(page.table, section.tables)))
    parts.append(page.section("How to repeat this", *(_repeat(run) for run in group.runs)))
    return "\n".join(parts)


def _figure(name: str, pictures: Pictures, caption: str) -> str:
    picture = pictures.get(name)
    return page.figure(picture.light, picture.dark, caption) if picture else ""


def _repeat(run: Run) -> str:
    config = json.dumps(run.config, indent=2, ensure_ascii=False, default=str) if run.config else ""
    return page.code(provenance(run)) + (page.code(config, "The whole config") if config else "")


def _heading(groups: Sequence[Group]) -> str:
    runs = sum(len(g.runs) for g in groups)
    if len(groups) > 1:
        return f"{runs} runs"
    return groups[0].title if runs == 1 else f"{groups[0].title}, {runs} seeds"


def _split(sizes: Sequence[int]) -> str:
    """ "10 tasks of 10", "a first task of 50, then 10 of 5", or all sizes."""
    if len(set(sizes)) == 1:
        return f"{len(sizes)} tasks of {sizes[0]}" if len(sizes) > 1 else "one task"
    if len(set(sizes[1:])) == 1:
        return f"a first task of {sizes[0]}, then {len(sizes) - 1} of {sizes[1]}"
    return f"tasks of {', '.join(map(str, sizes))}"


def _value(value: object) -> str:
    plain = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    return one_line(plain)


def _plain(text: str) -> str:
    return tables.escape_markdown(text)


def _indented(text: str) -> str:
    """A code block by indentation: a name in it could hold the backticks that would end a fenced block."""
    return "\n".join(f"    {line}" for line in text.splitlines())
