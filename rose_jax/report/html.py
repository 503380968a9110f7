"""What report.html and report.md say: setting, paper beside ours, methods, figures, how to repeat it."""

import json
from collections.abc import Mapping, Sequence

from rose_jax.report import page, paper, studies, tables
from rose_jax.report.compare import Group, spread
from rose_jax.report.figures import Picture
from rose_jax.report.runs import Run, one_line

CAPTIONS = {
    "curves": "Accuracy over all classes seen so far, after each task. The legend gives the last value.",
    "confusion": "Confusion by task after the last stage: where the images of each task are placed.",
    "matrix": "Accuracy on each task after each stage; what fades down a column is forgotten.",
    "drift_cosines": "Cosine between the estimated and the true move of every old prototype in the last stage.",
    "cost": "Time per test image, test-time evolution included.",
}


Pictures = Mapping[str, Picture]


def render(groups: Sequence[Group], pictures: Sequence[Pictures], overview: Pictures) -> str:
    """One page: the comparison first (with `overview`) if there are several groups, then each in full."""
    title = " | ".join(g.title for g in groups)
    parts = [f"<h1>{page.escape(_heading(groups))}</h1>"]
    if len(groups) > 1:
        runs = [run for g in groups for run in g.runs]
        parts += [page.paragraph(f"{one_line(g.title)}: {sentence(g)}") for g in groups]
        parts.append(page.section("Last accuracy side by side", page.table(tables.comparison(groups))))
        parts.append(page.section("Accuracy after each task", _figure("curves", overview)))
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
    for group in groups:
        if len(groups) > 1:
            parts.append(f"# {_plain(group.title)}")
        parts.append(_plain(sentence(group)))
        for heading, table in _tables(group):
            if table is not None:
                parts += [f"## {heading}", tables.markdown(table)]
        for study in (study for study in studies.of(group) if study.figure is not None):
            parts += [f"## {_plain(study.heading)}", _plain(study.says), tables.markdown(study.table)]
            if study.name in figures:
                parts.append(f"![{_plain(study.caption())}](figures/{study.name}.png)")
    parts += [f"![{CAPTIONS[name]}](figures/{name}.png)" for name in figures if name in CAPTIONS]
    for run in (run for g in groups for run in g.runs):
        parts += [
            f"## How to repeat {_plain(one_line(run.workdir.resolve().name))}",
            _fenced(provenance(run)),
        ]
    return "\n\n".join(parts) + "\n"


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
    """What the run shows of the paper's claim, in one sentence; "" without rose or without base."""
    last = {paper.canonical(m): spread([s.last for s in group.scores(m)]) for m in group.methods}
    rose, base = last.get("rose"), last.get("base")
    if rose is None or base is None:
        return ""
    projector = last.get("projector")
    against = (
        f" and {_points(rose.mean - projector.mean)} those moved by the trained projector" if projector else ""
    )
    return (
        f"RoSE ends at {rose.mean:.1f} % over all classes, "
        f"{_points(rose.mean - base.mean)} prototypes that are never moved{against}."
    )


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
    (paper_heading, paper_table), (methods_heading, methods_table), *rest = _tables(group)
    (_, stages), (_, cost), (_, training) = rest
    parts = [page.paragraph(sentence(group))]
    if run.reduced:
        parts.append(page.paragraph(f"This is a {run.reduced} run, not the paper's full setting.", "mark"))
    if finding(group):
        parts.append(page.paragraph(finding(group)))
    parts += [
        page.section(paper_heading, page.table(paper_table)),
        page.section(methods_heading, page.table(methods_table)),
        page.section(
            "Accuracy after each task", _said(group, "curves"), _figure("curves", pictures), page.table(stages)
        ),
        page.section("Confusion by task", _figure("confusion", pictures)),
        page.section("Accuracy matrix", _figure("matrix", pictures)),
        page.section("Drift", _figure("drift_cosines", pictures)),
        page.section("Cost", _figure("cost", pictures), page.table(cost), page.table(training)),
        *(_study(study, pictures) for study in studies.of(group) if study.figure is not None),
        page.section("How to repeat this", *(_repeat(run) for run in group.runs)),
    ]
    return "\n".join(parts)


def _tables(group: Group) -> list[tuple[str, tables.Table | None]]:
    return [
        ("The paper's table, ours beside it", tables.beside_paper(group)),
        ("Methods", tables.methods(group)),
        ("Accuracy after each task", tables.stages(group)),
        ("Cost", tables.cost(group)),
        ("Training", tables.training(group.runs[0])),
    ]


def _figure(name: str, pictures: Pictures, caption: str = "") -> str:
    picture = pictures.get(name)
    return page.figure(picture.light, picture.dark, caption or CAPTIONS[name]) if picture else ""


def _said(group: Group, name: str) -> str:
    says = studies.sentence(group, name)
    return page.paragraph(says) if says else ""


def _study(study: studies.StudyFile, pictures: Pictures) -> str:
    picture = _figure(study.name, pictures, study.caption())
    return page.section(study.heading, page.paragraph(study.says), picture, page.table(study.table))


def _repeat(run: Run) -> str:
    config = json.dumps(run.config, indent=2, ensure_ascii=False, default=str) if run.config else ""
    return page.code(provenance(run)) + (page.code(config, "The whole config") if config else "")


def _heading(groups: Sequence[Group]) -> str:
    runs = sum(len(g.runs) for g in groups)
    return (
        groups[0].title
        if runs == 1
        else f"{groups[0].title}, {runs} seeds"
        if len(groups) == 1
        else f"{runs} runs"
    )


def _split(sizes: Sequence[int]) -> str:
    """ "10 tasks of 10", "a first task of 50, then 10 of 5", or all sizes."""
    if len(set(sizes)) == 1:
        return f"{len(sizes)} tasks of {sizes[0]}" if len(sizes) > 1 else "one task"
    if len(set(sizes[1:])) == 1:
        return f"a first task of {sizes[0]}, then {len(sizes) - 1} of {sizes[1]}"
    return f"tasks of {', '.join(map(str, sizes))}"


def _points(gap: float) -> str:
    return f"{abs(gap):.1f} points {'over' if gap >= 0 else 'below'}"


def _value(value: object) -> str:
    plain = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    return one_line(plain)


def _plain(text: str) -> str:
    return tables.escape_markdown(text)


def _fenced(text: str) -> str:
    """A code block that its content cannot end: indented, not fenced by marks that a name could contain."""
    return "\n".join(f"    {line}" for line in text.splitlines())
