"""What a study gets, a finished run to ask questions of, and what it gives back."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rose_jax.errors import UserError
from rose_jax.experiment import OpenRun, open_run
from rose_jax.report import paper
from rose_jax.report.runs import Run, load
from rose_jax.report.tables import Table
from rose_jax.runtime.sharding import Layout
from rose_jax.study.bench import Bench


class Unsupported(Exception):
    """This run cannot answer the question; the message says why, in one line. Other studies go on."""


class Finding(NamedTuple):
    says: str  # what came out, in a sentence that the numbers bear out
    table: Table
    figure: dict[str, Any]  # plain data, see report/plots.py
    numbers: dict[str, Any]
    options: dict[str, Any]  # what the study varied and how often it drew


@dataclass
class Subject:
    """A run in its workdir. Data and snapshots are opened when a study first asks for a bench."""

    workdir: Path
    data_dir: str | None = None
    draws: int | None = None  # None: each study's own number
    thorough: bool = False  # also what takes many forward passes
    layout: Layout | None = None
    on_step: Callable[[int, int, float], None] = lambda done, total, seconds: None
    used: dict[str, Bench] = field(default_factory=dict)  # benches that the current study asked for

    def __post_init__(self) -> None:
        self.run: Run = load(self.workdir)
        self._stack = contextlib.ExitStack()
        self._opened: OpenRun | None = None
        self._benches: dict[str, Bench] = {}
        self._done, self._total = 0, 0

    def close(self) -> None:
        self._stack.close()

    def bench(self, objective: str = "base") -> Bench:
        """The bench of a trajectory; Unsupported if the run does not have all of it."""
        if objective not in self._benches:
            with _explained():
                self._benches[objective] = Bench(self.opened(), objective, self._tick)
        bench = self.used[objective] = self._benches[objective]
        if bench.stages < 2:
            raise Unsupported("the run has one task, so that no class is old")
        return bench

    def objectives(self) -> list[str]:
        """Trajectories of which every snapshot is there."""
        found = []
        for objective in self.opened().objectives():
            with contextlib.suppress(UserError):
                self.opened().trajectory(objective)
                found.append(objective)
        return found

    def opened(self) -> OpenRun:
        if self._opened is None:
            with _explained():
                self._opened = self._stack.enter_context(
                    open_run(self.workdir, data_dir=self.data_dir, layout=self.layout)
                )
        return self._opened

    def expect(self, passes: int) -> None:
        """So many passes over all stages are to come."""
        self._done, self._total = 0, passes * next(iter(self.used.values())).stages

    def paper(self, table: str, condition: str | None = None, method: str = "rose") -> float | None:
        """The number that the paper prints for this setting."""
        cell = paper.study_cell(table, *self.run.paper_setting, method=method, condition=condition)
        return cell.value if cell else None

    def _tick(self, seconds: float) -> None:
        self._done += 1
        self.on_step(self._done, max(self._total, self._done), seconds)
        self.opened().work.stop_if_preempted()  # studies before this one are on disk


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns the error of a run that cannot be opened into the reason why this study is not possible."""
    try:
        yield
    except UserError as error:
        raise Unsupported(str(error).splitlines()[0]) from error
