"""RoSE, which sees each image once, against gradient descent on all pairs of a stage until it converges.

Two more rows show how much there is to gain: prototypes from all old training images, which no method may keep, and the
encoder's own head, which does nothing against the drift.
"""

import jax.numpy as jnp
import numpy as np

from rose_jax.classifiers.ncm import nearest_by_cosine
from rose_jax.methods import METHODS
from rose_jax.report.tables import Table
from rose_jax.run import results as results_lib
from rose_jax.study import tell
from rose_jax.study.bench import Bench
from rose_jax.study.subject import Finding, Subject
from rose_jax.types import ClassMemory


def run(subject: Subject) -> Finding:
    bench = subject.bench()
    subject.expect(3)
    done = {method: bench.follow(method) for method in ("rose", "gd_oracle")}
    stages = {method: bench.per_stage(found) for method, found in done.items()}
    descent = [
        {"loss_gap": float(c["loss_gap"]), "steps": int(c["steps"]), "converged": bool(c["converged"])}
        for c in (outcome.counts for outcome in done["gd_oracle"].outcomes[1:])
    ]
    steps, converged = [d["steps"] for d in descent], sum(d["converged"] for d in descent)
    loss = f"loss stays up to {100 * max(d['loss_gap'] for d in descent):.2g} % above the closed form's"
    rows = [tell.row(m, found, subject.paper("tab:oracle", method=m)) for m, found in stages.items()]
    true_means = with_true_means(bench, subject)
    head = bench.per_stage(bench.follow(METHODS["base"]._replace(classifier="head")))
    rows.append(("true means of the old classes *", tell.cell(true_means), "-", "-"))
    rows.append(tell.row("head of the last encoder *", head, None))
    notes = (
        f"gd_oracle: full-batch Adam from the trained projector; it converged in {converged} of {len(descent)} stages "
        f"after {min(steps)} to {max(steps)} steps. Its {loss}.",
        "* No rows of the paper: prototypes from all old training images under the last encoder, and the trained head.",
    )
    rose, offline = (found[-1] for found in stages.values())
    says = (
        f"RoSE ends {tell.points(rose - offline)} offline gradient descent ({rose:.2f} against {offline:.2f}), whose "
        f"{loss}."
    )
    figure = tell.stage_lines(*(tell.by_stage(method, method, [found]) for method, found in stages.items()))
    table = Table(("method", "last", "average", "paper last"), tuple(rows), notes)
    numbers = {"per_stage": stages, "descent": descent, "true_means_last": true_means, "head_per_stage": head}
    return Finding(says, table, figure, numbers, {})


def with_true_means(bench: Bench, subject: Subject) -> float:
    """Last accuracy if the old prototypes were the class means of the old training images under the last encoder."""
    last = bench.stages - 1
    stream, old = bench.own_streams[last], slice(0, bench.scenario.offset(last))
    view = bench.bank.view(last, stream)
    prototypes = np.array(view.snapshots[last].memory.mean)
    _, truth = results_lib.true_means(bench.trajectory, subject.opened.work)
    prototypes[old] = truth[old]
    memory = ClassMemory(jnp.asarray(prototypes), jnp.zeros(len(prototypes), jnp.int32))
    scores = nearest_by_cosine(memory, jnp.asarray(view.test_features(last)))
    return tell.average(bench.class_accuracy(stream, np.asarray(scores).argmax(1)))
