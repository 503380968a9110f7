"""Accuracy against the number of test images per class; every stage streams that many of each class."""

import numpy as np

from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Arm, Bench
from rose_jax.study.subject import Finding, Subject

SIZES = (1, 2, 5, 10, 20, 50, 100)
DRAWS = 5
STARTS = ("trained", "identity", "random")

Found = dict[str, list[list[float]]]  # last accuracy by arm, size and draw


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or DRAWS
    most = int(bench.images_per_class().max())
    sizes = [size for size in SIZES if size < most] + [most]
    grains = sorted({1, min(128, bench.config.test.batch_size)})  # images per step of gradient descent
    arms: dict[str, Arm] = {"base": ("base", {}), "rose": ("rose", {})}
    for grain in grains:
        for start in STARTS:
            arms[f"gd {start}, {grain}"] = ("gd", {"gd_init": start, "granularity": grain})
        for start in STARTS if subject.thorough else STARTS[:1]:  # a step over the whole queue takes long
            arms[f"gd_queue {start}, {grain}"] = ("gd_queue", {"gd_init": start, "granularity": grain})
    subject.expect(len(arms) * len(sizes) * draws)
    found: dict[str, list[list[float]]] = {name: [] for name in arms}
    for name, (method, options) in arms.items():
        for size in sizes:
            passes = [
                # With all images a draw changes only their order and the pseudo-features; draw 0 is the run itself.
                bench.follow(method, keep=first(bench, size, d) if size < most else None, draw=d, **options)
                for d in range(draws)
            ]
            found[name].append([bench.last(done) for done in passes])
    header = ("test images per class", *map(str, sizes))
    rows = tuple((name, *(tell.cell(values) for values in found[name])) for name in arms)
    notes = (
        f"Mean ± sample deviation over {draws} draws of the images, their order and the pseudo-features; every stage sees "
        "the same ones, and accuracy is on what is streamed. gd: its start W0 and images per step.",
    )
    panels = [
        {"title": f"{grain} image{'s' * (grain > 1)} per step of gd", "series": _lines(found, sizes, grain)}
        for grain in grains
    ]
    figure = {"kind": "lines", "x": "test images per class", "y": "accuracy, %", "log_x": True, "panels": panels}
    options = {"sizes": sizes, "draws": draws, "arms": {name: options for name, (_, options) in arms.items()}}
    return Finding(_says(found, sizes), Table(header, rows, notes), figure, {"last": found}, options)


def first(bench: Bench, size: int, draw: int) -> np.ndarray:
    """bool [N]: the first `size` images of each class in the draw's order, so that smaller sets are part of larger."""
    keep = np.zeros(len(bench.labels), bool)
    for images in by_class(bench, draw, 1_000_001):
        keep[images[:size]] = True
    return keep


def by_class(bench: Bench, draw: int, purpose: int) -> list[np.ndarray]:
    """The test images of each class in a random order. Each study has its own `purpose`, a number above all stages,
    so that its draws differ from other studies' and from the orders of the streams."""
    order = bench.generator(draw, purpose).permutation(np.sort(bench.own_streams[-1]))
    return [order[bench.labels[order] == label] for label in range(bench.scenario.num_classes)]


def _lines(found: Found, sizes: list[int], grain: int) -> list[dict]:
    lines = [tell.series(name, name, found[name], sizes) for name in ("base", "rose")]
    for name in found:
        if name.endswith(f", {grain}"):
            method, start = name.split(",")[0].split()
            label = f"{method}, {start} start"
            other_queue = method == "gd_queue" and start != STARTS[0]
            variant = STARTS.index(start) + 2 * other_queue  # every line of a panel gets its own look
            lines.append(tell.series(method, label, found[name], sizes, variant=variant))
    return lines


def _says(found: Found, sizes: list[int]) -> str:
    means = {name: [tell.average(v) for v in values] for name, values in found.items()}
    best = {
        kind: max((n for n in found if n.startswith(f"{kind} ")), key=lambda n: means[n][-1])
        for kind in ("gd", "gd_queue")
    }
    below = {
        start: [str(s) for i, s in enumerate(sizes) if means[f"gd {start}, 1"][i] < means["base"][i]]
        for start in STARTS
    }
    words = "; ".join(f"{start} start: {', '.join(at) if at else 'nowhere'}" for start, at in below.items())
    return (
        f"With all images RoSE has {means['rose'][-1]:.2f}, the best gd {means[best['gd']][-1]:.2f} ({best['gd']}), the "
        f"best gd_queue {means[best['gd_queue']][-1]:.2f} ({best['gd_queue']}), base {means['base'][-1]:.2f}. gd (one "
        f"image per step) is below base at so many images per class: {words}."
    )
