"""Methods that adapt the network at test time: what they reach, on old and on new classes, and how their streams went.

Outcomes are those of the run where it has them, else they are made and kept beside them.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from rose_jax.methods import METHODS
from rose_jax.report.tables import NOT_THE_PAPERS, Table
from rose_jax.run import accuracy as metrics
from rose_jax.run.scoring import Outcome
from rose_jax.study import tell
from rose_jax.study.bench import Bench
from rose_jax.study.subject import Finding, Subject

ROWS = ("base", "projector", "batch_norm", "tent", "eata", "cotta", "ttt_off", "ttt", "ttt++_off", "ttt++", "rose")
ADAPTING = ("tent", "eata", "cotta", "ttt", "ttt++")
CONTROL = {
    "tent": "batch_norm",
    "eata": "batch_norm",
    "cotta": "batch_norm",
    "ttt": "ttt_off",
    "ttt++": "ttt++_off",
}
PIECES = 10  # that the last stage's stream is cut into, to see how it went
TABLE = "tab:alltttb0b50"  # tab:ttt_compare is the part of it with ten tasks


HEADER = (
    "row",
    "last",
    "average",
    "old",
    "new",
    "old taken for new",
    "images kept",
    "batches augmented",
    "entropy, first to last batch",
    "forwards",
    "backwards",
    "last - rose",
    "paper, last",
    "paper, last - rose",
)


class Told(NamedTuple):
    """A row after all stages, and along the last stage's stream."""

    summary: dict[str, Any]  # of metrics.summary
    last: Outcome
    passes: tuple[float, float]  # forwards and backwards per image
    x: list[int]  # images of the stream at the end of each piece
    old: list[float]  # per cent of the piece's images of old classes that were recognised
    to_new: list[float]  # and that were taken for a new one
    taken: float  # the last, over the whole stream


def run(subject: Subject) -> Finding:
    trained = subject.objectives()
    names = [name for name in ROWS if METHODS[name].objective in trained]
    benches = {name: subject.bench(METHODS[name].objective) for name in names}
    subject.expect(len(names))
    told = {name: follow(subject, bench, name) for name, bench in benches.items()}
    rose = told["rose"].summary["last"] if "rose" in told else None
    rows = [_cells(subject, name, row, rose) for name, row in told.items()]
    missing = [name for name in ROWS if name not in names]
    notes = [
        NOT_THE_PAPERS,
        "Per cent, averaged over classes; all but last and average after the last task. Old and new as in the report. Kept: of EATA, "
        "of all stages' images; augmented: of CoTTA; passes per image of the last stage; what is measured on the task is not counted.",
    ]
    if missing:
        notes.append(f"Not trained in this run: {', '.join(missing)} (--methods {','.join(missing)}).")
    numbers = {
        name: {
            "per_stage": row.summary["per_stage"],
            "old": row.summary["old"],
            "new": row.summary["new"],
            "counts": row.last.counts,
            "trace": {key: np.asarray(value).tolist() for key, value in row.last.trace.items()},
            "pieces": {"images": row.x, "old": row.old, "old_taken_for_new": row.to_new},
        }
        for name, row in told.items()
    }
    return Finding(
        _says(told), Table(HEADER, tuple(rows), tuple(notes)), _figure(told), numbers, {"pieces": PIECES}
    )


def follow(subject: Subject, bench: Bench, name: str) -> Told:
    config = bench.trajectory.parts.config
    scorer = bench.new_scorer(name, METHODS[name], config, subject.workdir / "scores")
    outcomes = []
    for stage, stream in enumerate(bench.own_streams):
        outcomes.append(scorer.score(bench.bank.view(stage, stream), bench.trajectory.digest(stage)))
        bench.tick(0.0)
    last, stream, task_of_class = outcomes[-1], bench.own_streams[-1], bench.scenario.task_of_class()
    labels = [bench.labels[one] for one in bench.own_streams]
    predictions = [outcome.predictions for outcome in outcomes]
    summary = metrics.summary(labels, predictions, task_of_class, config.scenario.start)
    newest = bench.stages - 1 if config.scenario.start == "cold" else 1  # from this task on, classes are new
    # An image that could not be scored (-1) was taken for nothing.
    truth, new = task_of_class[labels[-1]] < newest, task_of_class[last.predictions] >= newest
    new &= last.predictions >= 0
    right = last.predictions == labels[-1]
    ends = np.linspace(0, len(stream), min(PIECES, len(stream)) + 1).astype(int)
    old, to_new = [], []
    for start, end in itertools.pairwise(ends):
        here = np.arange(start, end)[truth[start:end]]
        old.append(100 * float(right[here].mean()) if len(here) else float("nan"))
        to_new.append(100 * float(new[here].mean()) if len(here) else float("nan"))
    passes = scorer.passes_per_image(last, bench.stages - 1)
    counts: dict[str, float] = {}
    for outcome in outcomes:
        counts |= {key: counts.get(key, 0) + value for key, value in outcome.counts.items()}
    counts |= {
        "images": sum(map(len, predictions)),
        "batches": sum(len(o.trace.get("images", ())) for o in outcomes),
    }
    taken = 100 * float(new[truth].mean())
    return Told(summary, last._replace(counts=counts), passes, ends[1:].tolist(), old, to_new, taken)


def _cells(subject: Subject, name: str, row: Told, rose: float | None) -> tuple[str, ...]:
    counts, entropy = row.last.counts, row.last.trace.get("entropy")
    printed, printed_rose = subject.paper(TABLE, method=name), subject.paper(TABLE)
    label = name if METHODS[name].origin == "paper" else f"{name} *"
    return (
        label,
        *(tell.cell(row.summary[key]) for key in ("last", "average", "old", "new")),
        tell.cell(row.taken),
        _share(counts, "kept_images", "images"),
        _share(counts, "augmented_batches", "batches"),
        f"{entropy[0]:.2f} to {entropy[-1]:.2f}" if entropy is not None and len(entropy) else "-",
        *(f"{value:.1f}" for value in row.passes),
        _gap(row.summary["last"], rose),
        tell.cell(printed),
        _gap(printed, printed_rose),
    )


def _gap(value: float | None, rose: float | None) -> str:
    return "-" if value is None or rose is None else tell.signed(value - rose)


def _share(counts: dict[str, float], part: str, whole: str) -> str:
    return f"{100 * counts[part] / max(counts[whole], 1):.1f} %" if part in counts else "-"


def _figure(told: dict[str, Told]) -> dict[str, Any]:
    """Three panels over the last stage's stream: entropy, old classes, what is taken for new."""
    entropies = []
    for name, row in told.items():
        trace = row.last.trace
        if "entropy" in trace:
            x = np.cumsum(trace["images"]).tolist()
            entropies.append(tell.series(name, name, [[float(value)] for value in trace["entropy"]], x))

    def lines(field: str) -> list[dict[str, Any]]:
        pieces = ((name, row, getattr(row, field)) for name, row in told.items())
        return [tell.series(name, name, [[value] for value in values], row.x) for name, row, values in pieces]

    panels = [
        {"title": "entropy", "y": "nats, mean of a batch", "series": entropies},
        {"title": "old classes", "y": "accuracy, %", "series": lines("old")},
        {"title": "old taken for new", "y": "% of images", "series": lines("to_new")},
    ]
    return {"kind": "lines", "x": "test images of the last stage so far", "panels": panels}


def _says(told: dict[str, Told]) -> str:
    there = [name for name in ADAPTING if name in told]
    ends = {name: told[name].summary["last"] for name in told}
    says = []
    for name in there:
        control = CONTROL[name]
        if control in told:
            gain = ends[name] - ends[control]
            says.append(f"{name} ends at {ends[name]:.2f}, {tell.points(gain)} {control}")
    best = max(there, key=ends.__getitem__, default=None)
    if best is not None and "rose" in told:
        says.append(f"the best of them, {best}, is {tell.points(ends[best] - ends['rose'])} rose")
    return "; ".join(says or ["The run has no row that adapts the network"]) + "."
