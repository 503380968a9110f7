"""Studies that change one option of the evolution: queue capacity, noise of the pseudo-features, images per update."""

from collections.abc import Sequence
from typing import Any

from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.subject import Finding, Subject

CAPACITIES = (500, 1000, 2000, 3000, 5000)
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
GRANULARITIES = (1, 4, 16, 64, 128)


def capacity(subject: Subject) -> Finding:
    """The capacity of the queue: the paper's values, and values around the feature dimension."""
    bench, dim = subject.bench(), subject.bench().dim
    values = sorted({*CAPACITIES, bench.config.evolution.capacity, dim // 2, dim, 2 * dim})
    printed = [subject.paper("tab:queue_capacity", f"capacity {value}") for value in values]
    notes = filter(None, (bench.scorer("rose", capacity=value).moving.note(dim) for value in values))
    finding = _sweep(subject, "capacity", "queue capacity", values, 3, printed=printed, notes=tuple(notes))
    means = [tell.average(last) for last in finding.numbers["rose"]["last"]]
    best = means.index(max(means))
    shape = "inside the range, as an inverted U has it" if 0 < best < len(values) - 1 else "at an end of the range"
    says = (
        f"{finding.says} The best capacity is {values[best]}, {shape}; from it to the largest the change is "
        f"{means[-1] - means[best]:+.2f} points."
    )
    return finding._replace(says=says)


def alpha(subject: Subject) -> Finding:
    """The noise of the pseudo-features. The paper's main text says 0.02, its supplement 0.2."""
    values = sorted({*ALPHAS, subject.bench().config.evolution.alpha})
    return _sweep(subject, "alpha", "alpha, noise of the pseudo-features", values, 2)


def granularity(subject: Subject) -> Finding:
    """What it costs in accuracy to update once per several images instead of once per image."""
    values = [g for g in GRANULARITIES if subject.bench().config.test.batch_size % g == 0]
    return _sweep(subject, "granularity", "images per update", values, 2, ("rose", "gd"))


def _sweep(
    subject: Subject,
    option: str,  # of config.evolution
    axis: str,
    values: Sequence[float],
    draws: int,  # unless the command says how many
    methods: Sequence[str] = ("rose",),
    printed: Sequence[float | None] = (),
    notes: Sequence[str] = (),
) -> Finding:
    bench, draws = subject.bench(), subject.draws or draws
    usual = getattr(bench.config.evolution, option)
    subject.expect(len(methods) * len(values) * draws)
    numbers: dict[str, Any] = {method: {"last": [], "average": []} for method in methods}
    for method in methods:
        for value in values:
            changed: dict[str, Any] = {option: value}
            stages = [bench.per_stage(bench.follow(method, draw=draw, **changed)) for draw in range(draws)]
            numbers[method]["last"].append([s[-1] for s in stages])
            numbers[method]["average"].append([tell.average(s) for s in stages])
    columns = {axis: [f"{value:g}" for value in values]}
    for method, found in numbers.items():
        columns |= {f"{method} {kind}": list(map(tell.cell, found[kind])) for kind in found}
    if any(value is not None for value in printed):
        columns["paper last"] = list(map(tell.cell, printed))
    drawn = f"Mean ± sample deviation over {draws} orders of the stream; the run itself has {option} {usual:g}."
    table = Table(tuple(columns), tuple(zip(*columns.values(), strict=True)), (drawn, *notes))
    figure = tell.log_lines(axis, [tell.series(m, m, numbers[m]["last"], values) for m in methods])
    means = [tell.average(v) for v in numbers[methods[0]]["last"]]
    low, high = (f"{end(means):.2f} ({option} {values[means.index(end(means))]:g})" for end in (min, max))
    says = f"{methods[0]} ends between {low} and {high}."
    return Finding(says, table, figure, {"values": list(values)} | numbers, {"draws": draws, "usual": usual})
