"""What the report says, section by section: setting, paper beside ours, methods, figures, studies, how to repeat it."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rose_jax.report import figures, glossary, paper, studies, tables
from rose_jax.report.compare import Group, points
from rose_jax.report.plots import Data, Painted
from rose_jax.report.runs import Run, one_line
from rose_jax.report.tables import Table


class Picture(NamedTuple):
    """A figure of the report, before or after it is drawn."""

    data: Data  # see plots.py
    name: str  # of its files, figures/NAME.png, .pdf and .svg; "" if it has none
    caption: str
    painted: Painted | None = None


class Section(NamedTuple):
    """Whatever of a section the run has no data for is left out, and the section with it if nothing remains."""

    heading: str
    text: Sequence[str] = ()
    tables: Sequence[Table | None] = ()
    picture: Picture | None = None
    mark: str = ""  # a sentence that must not be overlooked
    code: Sequence[tuple[str, str]] = ()  # (summary, verbatim text); with a summary it is folded away
    level: int = 2
    folded: str = ""  # the tables are long, and under this summary
    terms: Sequence[tuple[str, str]] = ()  # words and what they mean


# The report's own figures by name, in the order of the page: title, caption, what it shows.
FIGURES: dict[str, tuple[str, str, Callable[[Group], Data]]] = {
    "curves": (
        "accuracy after each task",
        "Accuracy over all classes seen so far, after each task. The legend gives the last value.",
        lambda group: figures.curves([group]),
    ),
    "paths": (
        "where the old prototypes go",
        "Test features of the last stage, at unit length, along their two principal directions; a colour for each old class (at most 8), grey "
        "for new ones. A path leads from where the task before left a prototype (ring; each method has its own) along the test stream to "
        "where it ends (disc); the cross is where it should be, the mean of the class under the newest encoder. A dotted line is the error that remains.",
        figures.paths,
    ),
    "old_new": (
        "old and new classes",
        "Last accuracy on old and new classes. After a cold start the last task's classes are new, after a warm start "
        "those of all tasks but the first. The paper's Figure 4 has base, projector, RoSE and LDC (cold) or FCS (warm).",
        figures.old_new,
    ),
    "per_class": (
        "accuracy on each class",
        "Last accuracy on each class; where there are many, on those in which the methods differ most.",
        figures.per_class,
    ),
    "confusion": (
        "confusion by task",
        "Confusion by task after the last stage: to which tasks the images of each task are assigned.",
        figures.confusion,
    ),
    "matrix": (
        "accuracy matrix",
        "Accuracy on each task after each stage; a number that falls down a column is forgetting.",
        figures.matrix,
    ),
    "drift_cosines": (
        "drift of the old prototypes",
        "Cosine between the estimated and the true move of every old prototype in the last stage.",
        figures.drift_cosines,
    ),
    "cost": ("cost at test time", "Time per test image, test-time evolution included.", figures.cost),
}


def document(groups: Sequence[Group]) -> list[Section]:
    """The whole report: of several groups first the comparison, then each group in full."""
    runs = [run for group in groups for run in group.runs]
    if len(groups) == 1:
        heading = f"{groups[0].title}, {len(runs)} seeds" if len(runs) > 1 else groups[0].title
        return sections(groups[0], heading)
    title, caption, _ = FIGURES["curves"]
    differing = tables.config_differences(runs)
    found = [
        Section(f"{len(runs)} runs", [f"{one_line(g.title)}: {sentence(g)}" for g in groups], level=1),
        Section("Last accuracy side by side", tables=[tables.comparison(groups)]),
        Section(_upper(title), picture=Picture(figures.curves(groups), "curves", caption + _drawn(groups))),
        Section(
            "What differs in the configs",
            tables=[differing],
            folded=f"{len(differing.rows)} options" if differing else "",
        ),
    ]
    for section in (section for group in groups for section in sections(group, group.title)):
        picture = section.picture and section.picture._replace(name="")  # files are of the comparison alone
        found.append(section._replace(picture=picture))
    words = [section for section in found if section.terms]  # once, at the end
    return [*(section for section in found if not section.terms), *_merged(words)]


def sections(group: Group, heading: str) -> list[Section]:
    """All of a group, in this order; the studies of its runs come last but for how to repeat them."""
    run = group.runs[0]
    mark = f"This is a {run.reduced} run, not the paper's full setting." if run.reduced else ""
    found = [
        Section(heading, [sentence(group), finding(group)], mark=mark, level=1),
        Section("The paper's table, ours beside it", tables=[tables.beside_paper(group)]),
        Section("Methods", tables=[tables.methods(group)]),
    ]
    classes = tables.per_class(group)
    beside = {
        "curves": [tables.stages(group)],
        "per_class": [classes],
        "cost": [tables.cost(group), tables.training(run)],
    }
    for name, (title, caption, data) in FIGURES.items():
        picture = Picture(data(group), name, caption)
        folded = f"All {len(classes.rows)} classes" if name == "per_class" and classes else ""
        found.append(Section(_upper(title), tables=beside.get(name, []), picture=picture, folded=folded))
    for one in studies.of(group):
        if one.name not in FIGURES:  # its figure's file would take the place of one of the report's own
            where = f"Beside the paper's {paper.place(one.paper)}." if one.paper else "Not in the paper."
            caption = f"{_upper(one.title)}. {where}"
            picture = Picture(one.figure, one.name, caption)
            found.append(Section(f"Study {one.name}: {one.title}", [one.says], [one.table], picture))
    words = Section("What the words mean", terms=glossary.of(group.methods))
    return [
        *found,
        words,
        Section("How to repeat this", code=[block for run in group.runs for block in _repeat(run)]),
    ]


def sentence(group: Group) -> str:
    """The setting in a sentence or two."""
    run = group.runs[0]
    sizes = run.task_sizes
    start = f", {run.start} start" if run.start else ""
    split = f": {sum(sizes)} classes in {_split(sizes)}" if sizes else f": {run.tasks} tasks" if run.tasks else ""
    order = run.setting.get("class_order")
    own = str(run.setting.get("data", "")).startswith("own")  # whose classes are known by name
    first = ", ".join(str(c) for c in (run.class_names if own else order)[:5]) if isinstance(order, list) else ""
    order_part = f" The class order begins {first}." if first else ""
    seeds = ", ".join(one_line(r.seed) for r in group.runs if r.seed is not None)
    seed_part = f" Seed{'s' if len(group.runs) > 1 else ''} {seeds}." if seeds else ""
    note = f" {run.setting['note']}" if run.setting.get("note") else ""
    return one_line(f"{paper.dataset_label(run.dataset)}{start}{split}.{order_part}{seed_part}{note}")


def finding(group: Group) -> str:
    """One sentence on the paper's claim that RoSE improves on unmoved prototypes; "" without rose or without base."""
    last = {paper.canonical(m): group.over_seeds(m, "last") for m in group.methods}
    rose, base, projector = (last.get(m) for m in ("rose", "base", "projector"))
    if rose is None or base is None:
        return ""
    says = f"RoSE ends at {rose.mean:.1f} % over all classes, {points(rose.mean - base.mean, 1)} prototypes that are never moved"
    if projector:
        says += f" and {points(rose.mean - projector.mean, 1)} those moved by the trained projector"
    return f"{says}."


def provenance(run: Run) -> str:
    """Command, config, seed, versions and device, a line each."""
    environment = {one_line(k): v for k, v in run.environment.items()}
    lines = {
        "command": environment.pop("command", None),
        "config": run.setting.get("config_name"),
        "preset": run.setting.get("label"),
        "seed": run.seed,
        "workdir": run.workdir,
        **environment,
    }
    width = max(len(key) for key in lines)
    return "\n".join(f"{key:<{width}}  {_value(value)}" for key, value in lines.items() if value is not None)


def _repeat(run: Run) -> list[tuple[str, str]]:
    config = json.dumps(run.config, indent=2, ensure_ascii=False, default=str)
    return [("", provenance(run)), *([("The whole config", config)] if run.config else [])]


def _split(sizes: Sequence[int]) -> str:
    """ "10 tasks of 10", "a first task of 50, then 10 of 5", or all sizes."""
    if len(set(sizes)) == 1:
        return f"{len(sizes)} tasks of {sizes[0]}" if len(sizes) > 1 else "one task"
    if len(set(sizes[1:])) == 1:
        return f"a first task of {sizes[0]}, then {len(sizes) - 1} of {sizes[1]}"
    return f"tasks of {', '.join(map(str, sizes))}"


def _value(value: object) -> str:
    nested = isinstance(value, dict | list)
    return one_line(json.dumps(value, ensure_ascii=False, default=str) if nested else value)


def _drawn(groups: Sequence[Group]) -> str:
    few = any(len(group.methods) > figures.MOST_CURVES // len(groups) for group in groups)
    return " Colours are methods, dashes and markers are runs." + (
        " Of each run its leading methods." if few else ""
    )


def _merged(words: Sequence[Section]) -> list[Section]:
    terms = dict(term for section in words for term in section.terms)
    return [words[0]._replace(terms=tuple(terms.items()))] if words else []


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
