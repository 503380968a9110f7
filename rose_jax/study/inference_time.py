"""Milliseconds per test image: without evolution, with gd and with rose, for several numbers of images per update."""

from rose_jax.report import paper
from rose_jax.report.tables import Table
from rose_jax.study import clock
from rose_jax.study.bench import Arm
from rose_jax.study.clock import median
from rose_jax.study.subject import Finding, Subject

GRANULARITIES = (1, 16, 128)


def run(subject: Subject) -> Finding:
    bench, rounds = subject.bench(), subject.draws or clock.ROUNDS
    grains = [g for g in GRANULARITIES if bench.config.test.batch_size % g == 0]
    arms: dict[str, Arm] = {"none": ("base", {})}
    arms |= {
        f"{method}, {g} per update": (method, {"granularity": g}) for method in ("gd", "rose") for g in grains
    }
    subject.expect(1)
    costs = clock.measure(bench, arms, rounds)
    paper_base = paper.inference_ms("base") or float("nan")
    rows = []
    for name, (method, options) in arms.items():
        ms = paper.inference_ms(method) if options.get("granularity", 1) == 1 else None
        printed = (f"{ms:.1f}", f"{ms / paper_base:.2f}x") if ms else ("-", "-")
        cost = costs[name]
        mine = (f"{median(cost.total):.3f}", f"{median(cost.stream):.3f}", f"{median(cost.ratio):.2f}x")
        rows.append((name, *mine, *printed))
    batch = bench.config.test.batch_size
    notes = (
        f"Medians of {rounds} rounds in which all rows take turns; forward passes in batches of {batch} on this "
        "machine, one of the old encoder more for rows that evolve. The paper's are of one GPU.",
    )
    header = ("", "ms/image", "of that, evolving", "of none", "paper ms", "paper of none")
    bars = [
        {
            "method": method,
            "label": name,
            "y": [median(costs[name].total)],
            "variant": grains.index(options["granularity"]) if options else 0,
        }
        for name, (method, options) in arms.items()
    ]
    figure = {"kind": "rows", "x": "ms per test image, forward passes included", "series": bars}
    gd, rose = (f"{method}, {grains[0]} per update" for method in ("gd", "rose"))
    says = (
        f"An image costs {median(costs['none'].total):.3f} ms without evolution, {median(costs[gd].ratio):.2f} times that "
        f"with gd and {median(costs[rose].ratio):.2f} times with RoSE; the evolution alone takes "
        f"{median(costs[gd].stream):.3f} ms with gd and {median(costs[rose].stream):.3f} ms with RoSE."
    )
    numbers = {name: cost._asdict() for name, cost in costs.items()}
    return Finding(says, Table(header, tuple(rows), notes), figure, numbers, {"rounds": rounds})
