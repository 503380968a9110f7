"""Mean and deviation over runs that differ in the seed alone: give several workdirs."""

from rose_jax.report.compare import Group, group
from rose_jax.report.runs import load
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.subject import Finding, Subject, Unsupported

FIELDS = ("last", "average", "old", "new", "forgetting", "drift_cosine")


def run(subject: Subject) -> Finding:
    mine = _group(subject)
    seeds = [run.seed for run in mine.runs]
    if len(seeds) < 2:
        raise Unsupported("one run has no deviation: give --workdir several that differ in the seed alone")
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1}, key=str)
    if twice:
        raise Unsupported(f"several of the runs have seed {twice[0]}: copies of one run have no deviation")
    numbers = {
        method: {field: [getattr(score, field) for score in mine.scores(method)] for field in FIELDS}
        for method in mine.methods
    }
    rows = []
    for method in mine.methods:
        cells = [tell.cell(numbers[method][field], 3 if field == "drift_cosine" else 2) for field in FIELDS]
        std = subject.paper_spread(method)
        rows.append((mine.label(method), *cells, std))
    notes = (f"Mean ± sample deviation over {len(seeds)} runs, seeds {', '.join(map(str, seeds))}.",)
    header = ("method", *(field.replace("_", " ") for field in FIELDS), "paper last")
    bars = [tell.series(method, mine.label(method), [numbers[method]["last"]]) for method in mine.methods]
    figure = {"kind": "rows", "x": "last accuracy, %", "series": bars}
    says = "; ".join(f"{method} {tell.cell(numbers[method]['last'])}" for method in mine.methods)
    both = [
        (r.scores["rose"].last, r.scores["projector"].last)
        for r in mine.runs
        if {"rose", "projector"} <= {*r.scores}
    ]
    paired = [rose - projector for rose, projector in both if rose is not None and projector is not None]
    if paired:
        says += f". RoSE minus projector within a run: {tell.signed(paired)}"
    return Finding(f"{says}.", Table(header, tuple(rows), notes), figure, numbers, {"seeds": seeds})


def _group(subject: Subject) -> Group:
    """The runs of the command that share everything but the seed with this one."""
    workdirs = {workdir.resolve(): workdir for workdir in (*subject.others, subject.workdir)}  # each once
    groups = group([load(workdir) for workdir in workdirs.values()])
    return next(g for g in groups if any(run.workdir == subject.workdir for run in g.runs))
