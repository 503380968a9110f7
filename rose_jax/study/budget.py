"""Evolving on every k-th image only: accuracy of all images, and cost against no evolution."""

from rose_jax.report.tables import Table
from rose_jax.study import clock, tell
from rose_jax.study.bench import Arm
from rose_jax.study.subject import Finding, Subject

EVERY = (1, 2, 4, 8, 16)


def run(subject: Subject) -> Finding:
    bench, rounds = subject.bench(), subject.draws or clock.ROUNDS
    subject.expect(len(EVERY) + 1)
    stages = {k: bench.per_stage(bench.follow("rose", evolve_every=k)) for k in EVERY}
    arms: dict[str, Arm] = {"none": ("base", {})}
    arms |= {str(k): ("rose", {"evolve_every": k}) for k in EVERY}
    costs = clock.measure(bench, arms, rounds)
    base = subject.run.scores.get("base")
    reference = base.last if base else None
    rows = [
        (str(k), tell.cell(s[-1]), tell.cell(tell.average(s)), f"{clock.median(costs[str(k)].ratio):.2f}x")
        for k, s in stages.items()
    ]
    rows.append(("no evolution (base)", tell.cell(reference), tell.cell(base.average if base else None), "1.00x"))
    notes = (f"Cost: ms per image, to that of no evolution; medians of {rounds} rounds in which all take turns.",)
    line = tell.series("rose", "rose", [[s[-1]] for s in stages.values()], EVERY)
    lines = [line]
    if reference is not None:
        lines.append(tell.series("base", "base", [[reference]] * len(EVERY), EVERY))
    axis = "k: every k-th image passes the old encoder and the queue"
    figure = {"kind": "lines", "x": axis, "y": "last accuracy, %", "log_x": True, "panels": [{"series": lines}]}
    top = EVERY[-1]
    says = (
        f"On every {top}th image RoSE ends at {stages[top][-1]:.2f} instead of {stages[1][-1]:.2f} and costs "
        f"{clock.median(costs[str(top)].ratio):.2f} instead of {clock.median(costs['1'].ratio):.2f} times no evolution."
    )
    numbers = {"per_stage": stages, "cost": {name: cost._asdict() for name, cost in costs.items()}}
    header = ("evolves on every k-th image", "last", "average", "cost")
    return Finding(
        says, Table(header, tuple(rows), notes), figure, numbers, {"every": list(EVERY), "rounds": rounds}
    )
