"""`python -m rose_jax.study NAME[,NAME...|all] --workdir RUN [RUN...]`: the paper's studies on trained runs."""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from rose_jax import report
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError, unknown
from rose_jax.experiment import cache_compilations
from rose_jax.report import tables
from rose_jax.report.studies import SCHEMA
from rose_jax.runtime import hosts
from rose_jax.runtime.files import write_json, write_text
from rose_jax.runtime.progress import Progress
from rose_jax.study import STUDIES, Finding, Subject


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if anything was done; 2, with one message, if the names or workdirs are wrong or nothing could be done."""
    flags = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        names = chosen(flags.names, flags.thorough)
        cache_compilations(flags.workdir[0])
        with Progress() as progress:
            done = sum([study_run(workdir, names, flags, progress) for workdir in dict.fromkeys(flags.workdir)])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except hosts.Preempted as stop:
        print("Stopped; what is in studies/ is whole. Name the missing studies to go on.", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("Interrupted; what is in studies/ is whole. Name the missing studies to go on.", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return 0 if done else 2


def study_run(workdir: Path, names: Sequence[str], flags: argparse.Namespace, progress: Progress) -> int:
    """The named studies on one run, then its report, which draws their figures. Returns how many could be done."""
    done = 0
    with contextlib.closing(Subject(workdir, flags.data_dir, flags.draws, flags.thorough)) as subject:
        for name in names:
            subject.used = {}
            subject.on_step = functools.partial(progress.count, name)
            begun = time.perf_counter()
            try:
                finding = STUDIES[name].run(subject)
            except UserError as reason:
                progress.stage(f"{name}: not possible here: {str(reason).splitlines()[0]}")
                continue
            seconds = time.perf_counter() - begun
            path = save(name, subject, finding, seconds)
            done += 1
            progress.stage(f"{name}: {seconds:.1f} s, {path}")
            print(f"\n{STUDIES[name].title}\n{tables.text(finding.table)}\n{finding.says}\n", flush=True)
    if done:
        print(f"Report: {report.write(workdir).html}")
    return done


def save(name: str, subject: Subject, finding: Finding, seconds: float) -> Path:
    """studies/NAME.json and NAME.csv, each replaced as a whole, so that a stop never leaves half of one."""
    keys = ("dataset", "start", "tasks", "split", "data", "label", "config_name")
    encoders = {key: [snapshot.digest for snapshot in b.bank.snapshots] for key, b in subject.used.items()}
    path = subject.workdir / "studies" / f"{name}.json"
    record = {
        "schema": SCHEMA,
        "study": name,
        "title": STUDIES[name].title,
        "paper": STUDIES[name].paper,
        "says": finding.says,
        # What the numbers were made from: the setting, and a digest of every encoder that the study used.
        "inputs": {key: subject.run.setting.get(key) for key in keys} | {"encoders": encoders},
        "seed": subject.run.seed,
        "options": finding.options,
        "numbers": finding.numbers,
        "table": dataclasses.asdict(finding.table),
        "figure": finding.figure,
        "seconds": round(seconds, 2),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "jax": jax.__version__,
    }
    write_json(path, record)
    write_text(path.with_suffix(".csv"), tables.csv_text([finding.table.header, *finding.table.rows]))
    return path


def chosen(names: str, thorough: bool = False) -> list[str]:
    """The studies that a comma-separated list names; "all" leaves out those that take longer than all others."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError(f"No study to run. Known: {', '.join(STUDIES)}, all.")
    for name in wanted:
        if name not in STUDIES and name != "all":
            raise unknown("study", name, [*STUDIES, "all"])
    every = [name for name, study in STUDIES.items() if thorough or not study.long or name in wanted]
    return every if "all" in wanted else list(dict.fromkeys(wanted))


def _parser() -> argparse.ArgumentParser:
    listed = "; ".join(f"{name}: {study.title}" for name, study in STUDIES.items())
    parser = argparse.ArgumentParser(
        prog="python -m rose_jax.study",
        description="The paper's studies on a trained run; nothing is trained. Each writes studies/NAME.json and "
        "figures/NAME.png in the workdir, and report.html gets a section.",
        epilog=f"Studies: {listed}. all: every one but {', '.join(n for n, s in STUDIES.items() if s.long)}.",
    )
    parser.add_argument("names", metavar="NAME[,NAME...]", help="studies, or all")
    parser.add_argument("--workdir", type=Path, nargs="+", required=True, metavar="RUN", help="finished runs")
    parser.add_argument("--data_dir", help="where the data lies, if not where the run found it")
    parser.add_argument("--draws", type=_positive, help="draws of every study that draws (default: each its own)")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="also what takes long: gd_queue from every start (samples), ADC and LDC on every trajectory (drift); and "
        "in `all` the studies that it leaves out otherwise",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
