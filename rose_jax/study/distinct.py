"""Does it matter that a test image is streamed again at every stage?

Two arms of RoSE: "distinct" deals the test images out, so that each is streamed at one stage only; "same" streams the
last stage's share at every stage. Both stream equally many images of each class at each stage.
"""

import numpy as np

from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Bench
from rose_jax.study.samples import by_class
from rose_jax.study.subject import Finding, Subject, Unsupported

DRAWS = 5
ARMS = ("same", "distinct")


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or DRAWS
    fewest = int(bench.images_per_class().min())
    if fewest < bench.stages:
        raise Unsupported(
            f"a class has {fewest} test images, fewer than the {bench.stages} stages to deal them to"
        )
    subject.expect(2 * draws)
    stages: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for draw in range(draws):
        hands = deal(bench, draw)
        keeps = {
            "same": [hands == bench.stages - 1] * bench.stages,
            "distinct": [hands == s for s in range(bench.stages)],
        }
        for arm, keep in keeps.items():
            stages[arm].append(bench.per_stage(bench.follow("rose", keep=keep, draw=draw)))
    last = {arm: [s[-1] for s in stages[arm]] for arm in ARMS}
    gap = [b - a for a, b in zip(last["same"], last["distinct"], strict=True)]
    rows = tuple(
        (f"RoSE ({arm})", tell.cell(last[arm]), tell.cell(subject.paper("tab:eliminate2", arm))) for arm in ARMS
    )
    per_stage = fewest // bench.stages
    notes = (
        f"Mean ± sample deviation over {draws} deals of {per_stage} images per class and stage; both arms have the same "
        f"last stage. Distinct minus same: {tell.signed(gap)}.",
    )
    figure = tell.stage_lines(
        *(tell.by_stage("rose", arm, stages[arm], variant=variant) for variant, arm in enumerate(ARMS))
    )
    says = (
        f"With test images that no earlier stage has seen RoSE ends {tell.points(tell.average(gap))} the same images "
        f"at each stage ({tell.signed(gap)} over {draws} deals)."
    )
    table = Table(("test data", "last", "paper last"), rows, notes)
    return Finding(says, table, figure, {"per_stage": stages}, {"draws": draws, "images_per_class": per_stage})


def deal(bench: Bench, draw: int) -> np.ndarray:
    """[N] the stage that each test image is dealt to; -1 for images left over.

    Every stage gets the same number of images of a class.
    """
    hands = np.full(len(bench.labels), -1)
    for images in by_class(bench, draw, 1_000_003):
        each = len(images) // bench.stages
        hands[images[: each * bench.stages]] = np.repeat(np.arange(bench.stages), each)
    return hands
