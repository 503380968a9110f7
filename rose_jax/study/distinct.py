"""Does it matter that a test image is streamed again at every stage?

Two arms of RoSE: "distinct" deals the test images out, so that each is streamed at one stage only; "same" streams the
last stage's share at every stage. Both stream equally many images of each class at each stage.
"""

import numpy as np

from rose_jax.errors import UserError
from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.bench import Bench
from rose_jax.study.samples import by_class
from rose_jax.study.subject import Finding, Subject

DRAWS = 5


def run(subject: Subject) -> Finding:
    bench, draws = subject.bench(), subject.draws or DRAWS
    fewest, last = int(bench.images_per_class().min()), bench.stages - 1
    if fewest < bench.stages:
        raise UserError(f"a class has {fewest} test images, fewer than the {bench.stages} stages to deal them to")
    subject.expect(2 * draws)
    stages: dict[str, list[list[float]]] = {"same": [], "distinct": []}
    for draw in range(draws):
        hands = deal(bench, draw)
        keeps = {"same": [hands == last] * bench.stages, "distinct": [hands == s for s in range(bench.stages)]}
        for arm, keep in keeps.items():
            stages[arm].append(bench.per_stage(bench.follow("rose", keep=keep, draw=draw)))
    ends = {arm: [s[-1] for s in found] for arm, found in stages.items()}
    gap = [b - a for a, b in zip(*ends.values(), strict=True)]
    printed = {arm: tell.cell(subject.paper("tab:eliminate2", arm)) for arm in stages}
    rows = tuple((f"RoSE ({arm})", tell.cell(ends[arm]), printed[arm]) for arm in stages)
    per_stage = fewest // bench.stages
    notes = (
        f"Mean ± sample deviation over {draws} deals of {per_stage} images per class and stage; both arms have the same "
        f"last stage. Distinct minus same: {tell.signed(gap)}.",
    )
    lines = [tell.by_stage("rose", arm, found, variant=v) for v, (arm, found) in enumerate(stages.items())]
    says = (
        f"With test images that no earlier stage has seen RoSE ends {tell.points(tell.average(gap))} the same images "
        f"at each stage ({tell.signed(gap)} over {draws} deals)."
    )
    table = Table(("test data", "last", "paper last"), rows, notes)
    options = {"draws": draws, "images_per_class": per_stage}
    return Finding(says, table, tell.stage_lines(*lines), {"per_stage": stages}, options)


def deal(bench: Bench, draw: int) -> np.ndarray:
    """[N] the stage that each test image is dealt to; -1 for images left over.

    Every stage gets the same number of images of a class.
    """
    hands = np.full(len(bench.labels), -1)
    for images in by_class(bench, draw, 1_000_003):
        each = len(images) // bench.stages
        hands[images[: each * bench.stages]] = np.repeat(np.arange(bench.stages), each)
    return hands
