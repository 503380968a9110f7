"""The evolved metric and its alternatives, one switch of config.metric at a time. See docs/evolved_metric.md."""

import copy
from typing import Any

from rose_jax.config import validate
from rose_jax.methods import WHITENED, resolve
from rose_jax.report.tables import NOT_THE_PAPERS, Table
from rose_jax.study import tell
from rose_jax.study.bench import Arm, Bench
from rose_jax.study.subject import Finding, Subject

ROWS = ("base", "projector", "gd", "rose")  # each as in the paper, and whitened
QUEUE = "the queue's own"
ALTERNATIVES: dict[str, dict[str, Any]] = {  # what of config.metric is changed for rose_whitened
    QUEUE: {"source": "queue"},
    **{f"{QUEUE}, ridge {ridge:g}": {"source": "queue", "queue_ridge": ridge} for ridge in (0.6, 2, 20)},
    "newest task only": {"source": "newest"},
    "no error of the map": {"error": "none"},
    "error of the map on D_t only": {"error": "task"},
    "no error, never refreshed": {"error": "none", "refresh": 0},
    "Gaussians (LDA)": {"kind": "lda"},
    "per class 0.1, refresh 512": {"per_class_weight": 0.1, "refresh": 512},
    "per class 0.3, refresh 512": {"per_class_weight": 0.3, "refresh": 512},
    **{f"refresh {refresh}": {"refresh": refresh} for refresh in (0, 32, 128, 512)},
    **{f"ridge {ridge:g}": {"ridge": ridge} for ridge in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)},
    "Ledoit-Wolf shrinkage": {"shrinkage": "ledoit_wolf"},
}
DRAWN_ROWS = ("projector", "rose")  # rows that the figure shows, as in the paper and whitened
DRAWN = (QUEUE, "no error of the map")  # alternatives that the figure shows


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or 1
    arms: dict[str, Arm] = {name: (name, {}) for name in ROWS}
    arms |= {name + WHITENED: (name + WHITENED, {}) for name in ROWS}
    arms |= {f"rose: {label}": ("rose" + WHITENED, options) for label, options in ALTERNATIVES.items()}
    subject.expect(draws * len(arms))
    stages = {label: _stages(bench, *arm, draws) for label, arm in arms.items()}
    rose, ours = stages["rose"], stages["rose" + WHITENED]
    usual = bench.config.metric
    header = ("row", "last", "average", "least gain on rose at a stage", "at stage")
    rows = [(label if label in ROWS else f"{label} *", *_cells(found, rose)) for label, found in stages.items()]
    notes = [
        NOT_THE_PAPERS,
        "Accuracy in per cent, averaged over classes; `average` is over the stages.",
        f"Unless a row says otherwise: source {usual.source}, error {usual.error}, {usual.kind}, ridge "
        f"{usual.ridge:g}, refresh {usual.refresh}; the queue's own metric: ridge {usual.queue_ridge:g}.",
        "By stage, rose / evolved / the queue's own: " + _by_stage(stages),
    ]
    if draws > 1:
        notes.append(f"Mean ± sample deviation over {draws} orders of the stream.")
    lines = [tell.by_stage(name, name, stages[name]) for name in DRAWN_ROWS]
    lines += [tell.by_stage(n, f"{n} whitened *", stages[n + WHITENED], variant=1) for n in DRAWN_ROWS]
    shown = [label for label in DRAWN if label in ALTERNATIVES]
    lines += [tell.by_stage("rose", f"{x} *", stages[f"rose: {x}"], variant=v) for v, x in enumerate(shown, 2)]
    gains = _gains(ours, rose)
    says = (
        f"rose_whitened ends {tell.points(gains[-1])} rose and is {tell.points(tell.average(gains))} it over the "
        f"stages; at {sum(gain < 0 for gain in gains)} of {len(gains)} stages it is worse."
    )
    options = {"draws": draws, "alternatives": ALTERNATIVES}
    table = Table(header, tuple(rows), tuple(notes))
    return Finding(says, table, tell.stage_lines(*lines), {"per_stage": stages}, options)


def _by_stage(stages: dict[str, list[list[float]]]) -> str:
    """Accuracy after each task in the plain cosine, the evolved metric and the queue's, averaged over draws."""
    rows = [stages["rose"], stages["rose" + WHITENED], stages[f"rose: {QUEUE}"]]
    means = [[tell.average(draws) for draws in zip(*row, strict=True)] for row in rows]
    return ", ".join(" / ".join(f"{value:.1f}" for value in stage) for stage in zip(*means, strict=True)) + "."


def _stages(bench: Bench, name: str, options: dict[str, Any], draws: int) -> list[list[float]]:
    """Accuracy [draw][stage] of a row with some options of config.metric changed."""
    config = copy.deepcopy(bench.config)
    for key, value in options.items():
        setattr(config.metric, key, value)
    scorer = bench.new_scorer(name, resolve([name])[name], validate(config))
    return [bench.per_stage(bench.go(scorer, bench.streams(None, draw), draw)) for draw in range(draws)]


def _gains(found: list[list[float]], rose: list[list[float]]) -> list[float]:
    """Accuracy minus rose's after each stage, averaged over draws."""
    mine, theirs = (map(tell.average, zip(*stages, strict=True)) for stages in (found, rose))
    return [a - b for a, b in zip(mine, theirs, strict=True)]


def _cells(found: list[list[float]], rose: list[list[float]]) -> tuple[str, ...]:
    """Cells of a row: last, average, and the stage (from the second on) at which it gains least on rose."""
    gains = _gains(found, rose)
    worst = min(range(1, len(gains)), key=gains.__getitem__)
    last, average = [stages[-1] for stages in found], [tell.average(stages) for stages in found]
    return tell.cell(last), tell.cell(average), f"{gains[worst]:+.2f}", str(worst + 1)
