"""Streams only half of the classes at every stage. The other half is scored afterwards, with the prototypes as they are
at the end of the stream, and never enters the queue."""

import numpy as np

from rose_jax.methods import METHODS
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Bench
from rose_jax.study.subject import Finding, Subject

SELECTIONS = 5
PARTS = {"selected": "selected classes", "other": "other classes (not streamed)"}
KINDS = ("balanced", "unbalanced")


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or SELECTIONS
    subject.expect(1 + draws)
    balanced = bench.follow("rose")
    everything = bench.class_accuracy(balanced.streams[-1], balanced.last.predictions)
    numbers: dict[str, dict[str, list[float]]] = {part: {kind: [] for kind in KINDS} for part in PARTS}
    selections = [select(bench, draw) for draw in range(draws)]
    for chosen in selections:
        for part, classes, after in zip(PARTS, (chosen, ~chosen), accuracies(bench, chosen), strict=True):
            numbers[part]["balanced"].append(tell.average(everything[classes]))
            numbers[part]["unbalanced"].append(tell.average(after))
    rows, ours, theirs = [], {}, []
    for part, name in PARTS.items():
        ours[part] = [b - a for a, b in zip(*numbers[part].values(), strict=True)]
        printed = [subject.paper("tab:unbalanced", f"{kind}, {part} classes") or float("nan") for kind in KINDS]
        theirs.append([printed[1] - printed[0]])
        cells = [*map(tell.cell, numbers[part].values()), tell.signed(ours[part]), *map(tell.cell, printed)]
        rows.append((name, *cells))
    header = ("accuracy on", "balanced", "unbalanced", "difference", "paper balanced", "paper unbalanced")
    notes = (f"Mean ± sample deviation over {draws} selections of half of the classes; differences are paired.",)
    bars = [tell.series("rose", "rose", ours.values())]
    if np.isfinite(theirs).all():
        bars.append(tell.series("rose", "the paper's", theirs, paper=True))
    axis = "unbalanced - balanced, points"
    figure = {"kind": "bars", "y": axis, "digits": 2, "groups": list(PARTS.values()), "series": bars}
    says = (
        f"A stream of half of the classes changes accuracy by {tell.signed(ours['selected'])} points on what it holds and "
        f"by {tell.signed(ours['other'])} on what it does not (paired over {draws} selections)."
    )
    options = {"selections": [np.flatnonzero(chosen).tolist() for chosen in selections]}
    return Finding(says, Table(header, tuple(rows), notes), figure, numbers, options)


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
    seen, unseen = (done.streams[-1], done.last.predictions), (rest, after.predictions)
    return bench.class_accuracy(*seen), bench.class_accuracy(*unseen)
