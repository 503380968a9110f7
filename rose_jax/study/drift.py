"""How well each method estimates the drift of the old classes in the last stage.

For each old class it takes the cosine between the method's move of the prototype and the move of the true class mean.
The true means come from the old classes' training images under both encoders, which no method may use.
"""

import numpy as np

from rose_jax.errors import UserError
from rose_jax.methods import METHODS, Row
from rose_jax.report.tables import Table
from rose_jax.run import accuracy as metrics
from rose_jax.run import results as results_lib
from rose_jax.run.scoring import Outcome
from rose_jax.study import tell
from rose_jax.study.bench import Bench
from rose_jax.study.subject import Finding, Subject

# These need only features of the test images, so that every trajectory gets a whole pass of each.
CHEAP = ("projector", "gd", "gd_queue", "gd_oracle", "rose")
# These read the last task's training images again. Where results.json has no numbers of them, they are run on the last
# stage alone. All but the first take many forward passes: unless the study is thorough, only the first trajectory gets them.
DEAR = ("sdc", "adc", "ldc")


def run(subject: Subject) -> Finding:
    cosines = {name: list(s.drift_cosines) for name, s in subject.run.scores.items() if s.drift_cosines}
    benches = [subject.bench(objective) for objective in subject.objectives()]
    if not cosines and not benches:
        raise UserError("neither results.json nor checkpoints/ say anything about drift")
    plan = [(bench, DEAR if subject.thorough or bench is benches[0] else DEAR[:1]) for bench in benches]
    if benches:
        subject.expect(sum(len(CHEAP) + len(dear) for _, dear in plan))
    alone = []
    for bench, dear in plan:
        truth = results_lib.true_means(bench.trajectory, subject.opened.work)
        for method in (*CHEAP, *dear):
            # The row's name in methods.py, or objective+method if it has none there.
            known = METHODS[method].objective == bench.objective
            name = method if known else f"{bench.objective}+{method}"
            if name in cosines or (method in DEAR and method in cosines):
                bench.tick_all()
            elif method in CHEAP:
                cosines[name] = _cosines(bench, bench.follow(method).last, truth)
            else:
                cosines[name] = _cosines(bench, last_stage_alone(bench, method, subject), truth)
                alone.append(name)
    cosines = dict(sorted(cosines.items(), key=lambda item: -tell.average(item[1])))
    means = {name: f"{tell.average(c):.3f}" for name, c in cosines.items()}
    quantiles = {name: np.nanquantile(c, (0.05, 0.5, 0.95)) for name, c in cosines.items()}
    rows = tuple((name, mean, *(f"{q:.3f}" for q in quantiles[name])) for name, mean in means.items())
    notes = [
        "The paper's figure for CIFAR-100, read by its text: RoSE above 0.95, ADC and LDC around 0.7, SDC 0.35."
    ]
    missing = [method for method in DEAR if not any(name.split("+")[-1] == method for name in cosines)]
    if missing:
        notes.append(f"Not scored in this run: {', '.join(missing)}.")
    if alone:
        notes.append(f"{', '.join(alone)}: run on the last stage alone, from the projector's prototypes.")
    bars = [{"method": name.split("+")[-1], "label": name, "y": c} for name, c in cosines.items()]
    figure = {"kind": "histograms", "x": "cosine of estimated and true drift (line: mean)", "series": bars}
    says = f"Mean cosine with the true drift: {', '.join(' '.join(item) for item in means.items())}."
    table = Table(("method", "mean", "5 %", "median", "95 %"), rows, tuple(notes))
    return Finding(says, table, figure, cosines, {"last_stage_alone": alone})


def last_stage_alone(bench: Bench, method: str, subject: Subject) -> Outcome:
    """The outcome of a compensation in the last stage; before that the trained projector has moved the prototypes."""
    row = Row(bench.objective, METHODS[method].compensation, "none", "ncm")
    folder = subject.workdir / "scores"  # kept for a later call, since it takes many forward passes
    scorer = bench.new_scorer(f"last_{bench.objective}_{method}", row, bench.config, folder)
    last = bench.stages - 1
    scorer.restart(after=bench.follow("projector").outcomes[last - 1])
    return scorer.score(bench.bank.view(last, bench.own_streams[last]), bench.trajectory.digest(last))


def _cosines(bench: Bench, outcome: Outcome, truth: tuple[np.ndarray, np.ndarray]) -> list[float]:
    old = slice(0, bench.scenario.offset(bench.stages - 1))
    true_old, true_new = truth
    moved = np.asarray(outcome.memory.mean)
    return metrics.drift_cosines(moved[old], outcome.unmoved[old], true_new[old], true_old[old]).tolist()
