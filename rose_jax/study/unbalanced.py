"""Streams only half of the classes at every stage. The other half is scored afterwards, with the prototypes as they are
at the end of the stream, and never enters the queue."""

import numpy as np

from rose_jax.methods import METHODS
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Bench, mean
from rose_jax.study.subject import Finding, Subject

SELECTIONS = 5
PARTS = ("selected", "other")
KINDS = ("balanced", "unbalanced")


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or SELECTIONS
    subject.expect(1 + draws)
    balanced = bench.follow("rose")
    everything = bench.class_accuracy(balanced.streams[-1], balanced.last.predictions)
    numbers: dict[str, dict[str, list[float]]] = {part: {kind: [] for kind in KINDS} for part in PARTS}
    selections = []
    for draw in range(draws):
        chosen = select(bench, draw)
        selections.append(np.flatnonzero(chosen).tolist())
        seen, unseen = accuracies(bench, chosen)
        for part, classes, after in (("selected", chosen, seen), ("other", ~chosen, unseen)):
            numbers[part]["balanced"].append(mean(everything[classes]))
            numbers[part]["unbalanced"].append(mean(after))
    names = {"selected": "selected classes", "other": "other classes (not streamed)"}
    header = ("accuracy on", "balanced", "unbalanced", "difference", "paper balanced", "paper unbalanced")
    printed = {
        part: [subject.paper("tab:unbalanced", f"{kind}, {part} classes") or float("nan") for kind in KINDS]
        for part in PARTS
    }
    rows = []
    for part in PARTS:
        cells = [*map(tell.cell, numbers[part].values()), tell.signed(gaps(numbers[part]))]
        rows.append((names[part], *cells, *map(tell.cell, printed[part])))
    notes = (f"Mean ± sample deviation over {draws} selections of half of the classes; differences are paired.",)
    bars = [tell.series("rose", "rose", [gaps(numbers[part]) for part in PARTS])]
    theirs = [[after - before] for before, after in printed.values()]
    if np.isfinite(theirs).all():
        bars.append(tell.series("rose", "the paper's", theirs, paper=True))
    axis = "unbalanced - balanced, points"
    figure = {"kind": "bars", "y": axis, "digits": 2, "groups": list(names.values()), "series": bars}
    change = {part: tell.signed(gaps(numbers[part])) for part in PARTS}
    says = (
        f"A stream of half of the classes changes accuracy by {change['selected']} points on what it holds and by "
        f"{change['other']} on what it does not (paired over {draws} selections)."
    )
    return Finding(says, Table(header, tuple(rows), notes), figure, numbers, {"selections": selections})


def select(bench: Bench, draw: int) -> np.ndarray:
    """bool [C]: a random half of the classes."""
    order = bench.generator(draw, 1_000_002).permutation(bench.scenario.num_classes)
    return np.isin(np.arange(len(order)), order[: len(order) // 2])


def accuracies(bench: Bench, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[C] accuracy of the chosen classes in their stream, and of the others with the prototypes at its end."""
    streamed = chosen[bench.labels]
    done = bench.follow("rose", keep=streamed)
    still = bench.scorer(METHODS["base"])
    still.restart(after=done.last)
    rest = bench.streams(~streamed)[-1]
    after = still.score(bench.bank.view(bench.stages - 1, rest))
    return (
        bench.class_accuracy(done.streams[-1], done.last.predictions),
        bench.class_accuracy(rest, after.predictions),
    )


def gaps(both: dict[str, list[float]]) -> list[float]:
    """Unbalanced minus balanced, for each selection of classes."""
    return [after - before for before, after in zip(both["balanced"], both["unbalanced"], strict=True)]
