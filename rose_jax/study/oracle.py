"""RoSE, which sees an image once, against gradient descent on the whole stage's pairs until it converges."""

from rose_jax.report.tables import Table
from rose_jax.study import tell
from rose_jax.study.subject import Finding, Subject


def run(subject: Subject) -> Finding:
    bench = subject.bench()
    subject.expect(2)
    methods = ("rose", "gd_oracle")
    done = {method: bench.follow(method) for method in methods}
    stages = {method: bench.per_stage(done[method]) for method in methods}
    counts = [outcome.counts for outcome in done["gd_oracle"].outcomes[1:]]
    descent = [
        {"loss_gap": float(c["loss_gap"]), "steps": int(c["steps"]), "converged": bool(c["converged"])}
        for c in counts
    ]
    gap = max(d["loss_gap"] for d in descent)
    rows = tuple(
        (
            method,
            tell.cell(stages[method][-1]),
            tell.cell(tell.average(stages[method])),
            tell.cell(subject.paper("tab:oracle", method=method)),
        )
        for method in methods
    )
    converged = sum(d["converged"] for d in descent)
    notes = (
        f"gd_oracle: full-batch Adam from the trained projector; it converged in {converged} of {len(descent)} stages "
        f"after {min(d['steps'] for d in descent)} to {max(d['steps'] for d in descent)} steps. Its loss stays up to "
        f"{100 * gap:.2g} % above the closed form's.",
    )
    difference = stages["rose"][-1] - stages["gd_oracle"][-1]
    says = (
        f"RoSE ends {tell.points(difference)} offline gradient descent ({stages['rose'][-1]:.2f} against "
        f"{stages['gd_oracle'][-1]:.2f}), whose loss stays up to {100 * gap:.2g} % above the closed form's."
    )
    figure = tell.stage_lines(*(tell.by_stage(method, method, [stages[method]]) for method in methods))
    table = Table(("method", "last", "average", "paper last"), rows, notes)
    return Finding(says, table, figure, {"per_stage": stages, "descent": descent}, {})
