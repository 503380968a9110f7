"""`python -m rose_jax.sweep`: several runs of the ordinary command, one per device, and one table of all of them.

Every config file is run with every seed and every combination of the values of --set, each in the workdir that
`python -m rose_jax.main` alone would make. The same command continues what was stopped or failed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rose_jax import report
from rose_jax.errors import UserError
from rose_jax.runtime.files import refuse_address
from rose_jax.runtime.mirror import Mirror, check_mirror
from rose_jax.sweep import survey
from rose_jax.sweep.cluster import OnRay
from rose_jax.sweep.lines import Lines, last_lines, reason
from rose_jax.sweep.local import Local, slots_for
from rose_jax.sweep.plan import make_plan, out_folder, seeds_of
from rose_jax.sweep.schedule import Executor, Signals, Task, follow

EXAMPLE = """\
  --config.KEY=VALUE    an option for every run, as python -m rose_jax.main has them

example: python -m rose_jax.sweep --config configs/digits_cold5.py --seeds 0,1,2,3,4 --methods base,projector,rose
"""
LAST_LINES = 12  # of a failed run's log
COMMAND = (sys.executable, "-m", "rose_jax.main")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return sweep(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def sweep(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    seeds = seeds_of(options.seeds) if options.seeds else []
    runs = make_plan(options.config, seeds, options.set, options.others, options.methods)
    refuse_address("--out", options.out or "")
    out = Path(options.out) if options.out else out_folder(options.config, seeds, options.set, options.others)
    more = [f"--writers={options.writers}"] if options.writers else []
    more += ["--overwrite"] if options.overwrite else []
    more += [] if options.deterministic else ["--nodeterministic"]
    if options.mirror:
        check_mirror(options.mirror, runs[0].workdir)
        more.append(f"--mirror={options.mirror}")
    with Signals() as signals:
        executor, found = _executor(options, [run.arguments for run in runs], more)
        tasks = [
            Task(run, out / f"{run.name}.log", frozenset(trainings), programs)
            for run, trainings, programs in zip(runs, found.trainings, found.programs, strict=True)
        ]
        print(f"{len(runs)} runs; logs and the common report: {out}", file=sys.stderr)
        follow(tasks, executor, Lines(), signals)
    return _conclude(tasks, out, options.mirror, signals)


def _executor(
    options: argparse.Namespace, runs: Sequence[Sequence[str]], more: Sequence[str]
) -> tuple[Executor, survey.Survey]:
    if options.ray:
        on_ray = OnRay(options.ray, options.parallel, more)
        return on_ray, on_ray.survey(runs)
    found = survey.ask(runs)
    slots = slots_for(found.platform, found.devices, options.parallel)
    return Local(slots, COMMAND, more), found


def _conclude(tasks: Sequence[Task], out: Path, mirror: str, signals: Signals) -> int:
    """The table of what is finished, then what is not and why; returns the exit code."""
    finished = [task for task in tasks if task.code == 0]
    for task in finished if mirror else ():  # of a machine that keeps its files to itself
        if not (task.run.workdir / "results.json").exists():
            task.run.workdir.mkdir(parents=True, exist_ok=True)
            Mirror(mirror, task.run.workdir).fill()
    here = [task for task in finished if (task.run.workdir / "results.json").exists()]
    if here:
        written = report.write_several([task.run.workdir for task in here], out)
        print(f"{written.text}\n\nReport: {written.html}")
        for figure in written.figures:
            print(f"Figure: {figure}")
    elsewhere = [task for task in finished if task not in here]
    if elsewhere:
        names = ", ".join(task.run.name for task in elsewhere)
        print(
            f"The results of {names} are not on this machine: use a shared folder, or --mirror.", file=sys.stderr
        )
    if signals.asked:
        print(
            f"Stopped: {len(finished)} of {len(tasks)} runs are done. The same command continues.", file=sys.stderr
        )
        return signals.exit_code
    failed = [task for task in tasks if task.code]
    for task in failed:
        print(f"\nFAILED: {task.run.workdir}, {reason(task.code or 0)}. The end of {task.log}:", file=sys.stderr)
        print("\n".join(f"    {line}" for line in last_lines(task, LAST_LINES)), file=sys.stderr)
    if failed:
        print(
            f"\n{len(failed)} of {len(tasks)} runs failed; the same command tries them again and takes the others "
            "as they are.",
            file=sys.stderr,
        )
    return int(bool(failed or elsewhere))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rose_jax.sweep",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", nargs="+", required=True, metavar="FILE[:PRESET]", help="settings")
    parser.add_argument("--seeds", help="such as 0,1,2,3,4; default: the config's own")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="an option and its values, such as evolution.alpha=0.02,0.2; several: every combination",
    )
    parser.add_argument("--methods", help="rows to score in every run, such as base,rose; default: the config's")
    parser.add_argument(
        "--parallel", type=int, default=0, metavar="N", help="runs at a time; default: one per device"
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="of a Ray cluster to run on, or auto (extra ray)")
    parser.add_argument("--mirror", default="", metavar="URL", help="keep a copy of every run below this URL")
    parser.add_argument("--out", metavar="DIR", help="for logs and the common report; default runs/sweep_...")
    parser.add_argument("--writers", help="as of the ordinary command")
    parser.add_argument("--overwrite", action="store_true", help="as of the ordinary command")
    parser.add_argument(
        "--nodeterministic", dest="deterministic", action="store_false", help="as of the ordinary command"
    )
    options, others = parser.parse_known_args(arguments)
    for word in others:
        if not word.startswith("--config.") or "=" not in word:
            raise UserError(f"Unexpected argument {word!r}. Options of the runs are given as --config.KEY=VALUE.")
    if options.parallel < 0:
        raise UserError(f"--parallel {options.parallel} is not a number of runs.")
    options.others = others
    return options


if __name__ == "__main__":
    sys.exit(main())
