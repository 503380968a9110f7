"""Starts runs as places become free, and follows them to their end. What a place is, an executor knows.

Encoders that several runs need are trained by the first of them: the others start when it has ended, and take them over
(runtime/siblings.py). On one machine, runs that compile the same programs also wait until the first has got going,
and then read them from the compilation cache.
"""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rose_jax.errors import INTERRUPTED_EXIT_CODE
from rose_jax.sweep.plan import Run

LOOK_SECONDS = 0.2
PREEMPTED_EXIT_CODE = 75  # as of a single run


class Job(Protocol):
    """A run that was started."""

    place: str  # where it runs, for the display

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""

    def signal(self, number: int) -> None:
        """SIGTERM and SIGINT ask it to save and stop."""


class Executor(Protocol):
    """Where runs are executed: local.py, cluster.py."""

    shares_cache: bool  # whether all runs read one compilation cache

    def free(self) -> bool:
        """Whether another run can be started now."""

    def start(self, run: Run, log: Path) -> Job: ...


@dataclass
class Task:
    """A run and how it goes."""

    run: Run
    log: Path
    trainings: frozenset[str] = frozenset()
    programs: str = ""
    job: Job | None = None
    code: int | None = None  # exit code, once it has ended
    begun: float = 0.0
    log_begin: int = 0  # where this start's lines begin
    seconds: float = 0.0

    @property
    def running(self) -> bool:
        return self.job is not None and self.code is None


class Display(Protocol):
    def show(self, tasks: Sequence[Task]) -> None: ...


@dataclass
class Signals:
    """Notes SIGTERM, SIGHUP and Ctrl-C while it is entered."""

    asked: list[int] = field(default_factory=list)
    _previous: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> "Signals":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, or a shell in the background
                self._previous[number] = signal.signal(number, lambda n, frame: self.asked.append(n))
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED_EXIT_CODE if self.asked[0] == signal.SIGINT else PREEMPTED_EXIT_CODE


def follow(tasks: Sequence[Task], executor: Executor, display: Display, signals: Signals) -> None:
    """Until every run has ended or, after a signal, all that were started."""
    trained: set[str] = set()  # encoders of runs that are done
    passed_on = 0  # signals that the runs have got
    while True:
        for task in tasks:
            if task.running and task.job is not None:
                task.code = task.job.ended()
                task.seconds = time.monotonic() - task.begun
                if task.code == 0:
                    trained |= task.trainings
        if len(signals.asked) > passed_on:
            number = signal.SIGINT if signals.asked[-1] == signal.SIGINT else signal.SIGTERM
            for task in tasks:
                if task.running and task.job is not None:
                    task.job.signal(number)
            passed_on = len(signals.asked)
        for task in tasks if not signals.asked else ():
            if task.job is None and executor.free() and may_start(task, tasks, trained, executor.shares_cache):
                task.log_begin = task.log.stat().st_size if task.log.exists() else 0
                task.begun = time.monotonic()
                task.job = executor.start(task.run, task.log)
        display.show(tasks)
        if not any(task.running for task in tasks) and (signals.asked or all(t.job for t in tasks)):
            return
        time.sleep(LOOK_SECONDS)


def may_start(task: Task, tasks: Sequence[Task], trained: set[str], shares_cache: bool) -> bool:
    """Whether nothing that it needs is being made by a run that is under way."""
    others = [other for other in tasks if other.running]
    if any((task.trainings & other.trainings) - trained for other in others):
        return False
    alike = [other for other in tasks if other.job is not None and other.programs == task.programs]
    return not shares_cache or not alike or any(other.code is not None or has_begun(other) for other in alike)


def has_begun(task: Task) -> bool:
    """Whether it has logged steps since it was started, and so has compiled at least its first program."""
    log = task.run.workdir / "metrics.jsonl"
    try:
        return time.time() - log.stat().st_mtime < time.monotonic() - task.begun and log.stat().st_size > 0
    except OSError:
        return False
