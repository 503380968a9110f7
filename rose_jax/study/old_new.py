"""Old against new classes after the last task; what counts as old follows the paper's figure (see metrics.summary)."""

from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.subject import Finding, Subject, Unsupported

ROWS = {"cold": ("base", "projector", "ldc", "rose"), "warm": ("base", "projector", "fcs", "rose")}


def run(subject: Subject) -> Finding:
    scores = subject.run.scores
    wanted = ROWS.get(subject.run.start, ROWS["cold"])
    if all(score.old is None for score in scores.values()):
        raise Unsupported("the run has one task, so that no class is old")
    rows = [name for name in wanted if name in scores and scores[name].old is not None]
    if "rose" not in rows or len(rows) < 2:
        raise Unsupported(f"results.json must hold rose and one more of {', '.join(wanted[:-1])}")
    split = "last task against the rest" if subject.run.start != "warm" else "first task against the rest"
    numbers = {name: {"old": scores[name].old, "new": scores[name].new, "all": scores[name].last} for name in rows}
    table = Table(
        ("method", "old", "new", "all"),
        tuple((name, *(tell.cell(value) for value in numbers[name].values())) for name in rows),
        (f"Last accuracy in per cent, averaged over classes: {split}.", *_missing(wanted, rows)),
    )
    bars = [{"method": name, "label": name, "y": [numbers[name]["old"], numbers[name]["new"]]} for name in rows]
    figure = {"kind": "bars", "y": "accuracy, %", "groups": ["old classes", "new classes"], "series": bars}
    order = sorted(rows, key=lambda name: -(numbers[name]["old"] or 0.0))
    says = "On old classes " + " > ".join(f"{name} {numbers[name]['old']:.2f}" for name in order) + "."
    gap = {name: (numbers[name]["new"] or 0.0) - (numbers[name]["old"] or 0.0) for name in rows}
    if "base" in gap:
        says += f" New minus old: {gap['base']:+.2f} for base, {gap['rose']:+.2f} for RoSE."
    return Finding(says, table, figure, numbers, {"split": split})


def _missing(wanted: tuple[str, ...], rows: list[str]) -> tuple[str, ...]:
    missing = [name for name in wanted if name not in rows]
    return (f"Not scored in this run: {', '.join(missing)}.",) if missing else ()
