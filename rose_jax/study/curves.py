"""Accuracy after each task, for every scored method. The report's own figure `curves` shows it."""

from rose_jax.report import tables
from rose_jax.report.compare import group
from rose_jax.study import tell
from rose_jax.study.subject import Finding, Subject, Unsupported


def run(subject: Subject) -> Finding:
    scores = {name: score.per_stage for name, score in subject.run.scores.items() if score.per_stage}
    table = tables.stages(group([subject.run])[0])
    if table is None:
        raise Unsupported("results.json holds no accuracies per stage")
    return Finding(_says(scores), table, None, {"per_stage": scores}, {})


def _says(scores) -> str:
    rose = scores.get("rose")
    rivals = {name: stages for name, stages in scores.items() if name != "rose" and len(stages) == len(rose or ())}
    if rose is None or not rivals or len(rose) < 2:
        return f"{len(scores)} methods over {max(map(len, scores.values()))} stages."
    gaps = [
        mine - max(stages[t] for stages in rivals.values() if stages[t] is not None) for t, mine in enumerate(rose)
    ]
    ahead = sum(gap > 0 for gap in gaps[1:])
    best = max(rivals, key=lambda name: rivals[name][-1])
    return (
        f"RoSE leads all others after {ahead} of {len(gaps) - 1} later tasks; it ends {tell.points(gaps[-1])} the "
        f"next best ({best}), and was {tell.points(gaps[1])} after the second task."
    )
