"""Accuracy against the number of test images per class; every stage streams that many of each class."""

import itertools

import numpy as np

from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Arm, Bench
from rose_jax.study.subject import Finding, Subject

SIZES = (1, 2, 5, 10, 20, 50, 100)
DRAWS = 5
STARTS = ("trained", "identity", "random")


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or DRAWS
    most = int(bench.images_per_class().max())
    sizes = [size for size in SIZES if size < most] + [most]
    grains = sorted({1, min(128, bench.config.test.batch_size)})  # images per step of gradient descent
    # A step of gd_queue, over the whole queue, takes long.
    starts = {"gd": STARTS, "gd_queue": STARTS if subject.thorough else STARTS[:1]}
    arms: dict[str, Arm] = {"base": ("base", {}), "rose": ("rose", {})}
    for grain, method in itertools.product(grains, starts):
        for start in starts[method]:
            arms[f"{method} {start}, {grain}"] = (method, {"gd_init": start, "granularity": grain})
    subject.expect(len(arms) * len(sizes) * draws)
    found: dict[str, list[list[float]]] = {name: [] for name in arms}  # last accuracy by arm, size and draw
    for name, (method, options) in arms.items():
        for size in sizes:
            # With all images a draw changes only their order and the pseudo-features; draw 0 is the run itself.
            keeps = [first(bench, size, draw) if size < most else None for draw in range(draws)]
            passes = [bench.follow(method, keep=keep, draw=draw, **options) for draw, keep in enumerate(keeps)]
            found[name].append([bench.per_stage(done)[-1] for done in passes])
    header = ("test images per class", *map(str, sizes))
    rows = tuple((name, *map(tell.cell, found[name])) for name in arms)
    notes = (
        f"Mean ± sample deviation over {draws} draws of the images, their order and the pseudo-features; every stage sees "
        "the same ones, and accuracy is on what is streamed. gd: its start W0 and images per step.",
    )
    panels = []
    for grain in grains:
        here = {name: arm for name, arm in arms.items() if arm[1].get("granularity", grain) == grain}
        lines = [_line(*arm, found[name], sizes) for name, arm in here.items()]
        panels.append({"title": f"{grain} image{'s' * (grain > 1)} per step of gd", "series": lines})
    figure = tell.log_lines("test images per class", []) | {"y": "accuracy, %", "panels": panels}
    varied = {"sizes": sizes, "draws": draws, "arms": {name: options for name, (_, options) in arms.items()}}
    return Finding(_says(found, sizes), Table(header, rows, notes), figure, {"last": found}, varied)


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


def _line(method: str, options: dict, found: list[list[float]], sizes: list[int]) -> dict:
    start = options.get("gd_init")
    if start is None:
        return tell.series(method, method, found, sizes)
    # Every line of a panel gets its own look; gd and gd_queue, which share a colour, differ in the first of them.
    variant = STARTS.index(start) + 2 * (method == "gd_queue" and start != STARTS[0])
    return tell.series(method, f"{method}, {start} start", found, sizes, variant=variant)


def _says(found: dict[str, list[list[float]]], sizes: list[int]) -> str:
    means = {name: [tell.average(v) for v in values] for name, values in found.items()}
    last = {name: values[-1] for name, values in means.items()}
    ranked = sorted(last, key=lambda name: -last[name])
    gd, queue = (next(n for n in ranked if n.startswith(f"{kind} ")) for kind in ("gd", "gd_queue"))
    words = []
    for start in STARTS:
        pairs = zip(sizes, means[f"gd {start}, 1"], means["base"], strict=True)
        below = [str(size) for size, mine, base in pairs if mine < base]
        words.append(f"{start} start: {', '.join(below) or 'nowhere'}")
    return (
        f"With all images RoSE has {last['rose']:.2f}, the best gd {last[gd]:.2f} ({gd}), the best gd_queue "
        f"{last[queue]:.2f} ({queue}), base {last['base']:.2f}. gd (one image per step) is below base at so many images "
        f"per class: {'; '.join(words)}."
    )
