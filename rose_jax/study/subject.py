"""What a study gets, a finished run to ask questions of, and what it gives back."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rose_jax.errors import UserError
from rose_jax.experiment import OpenRun, open_run
from rose_jax.report import paper
from rose_jax.report.runs import load
from rose_jax.report.tables import Table
from rose_jax.study.bench import Bench


class Finding(NamedTuple):
    says: str  # what came out, in a sentence that the numbers bear out
    table: Table
    figure: dict[str, Any]  # plain data, see report/plots.py
    numbers: dict[str, Any]
    options: dict[str, Any]  # what the study varied and how often it drew


class Subject:
    """A run in its workdir. A UserError while a study runs says why this run cannot answer its question."""

    def __init__(
        self, workdir: Path, data_dir: str | None = None, draws: int | None = None, thorough: bool = False
    ):
        """draws: None, each study's own number. thorough: also what takes many forward passes."""
        self.workdir, self.data_dir, self.draws, self.thorough = workdir, data_dir, draws, thorough
        self.run = load(workdir)
        self.on_step: Callable[[int, int, float], None] = lambda done, total, seconds: None
        self.used: dict[str, Bench] = {}  # benches that the current study asked for
        self._stack = contextlib.ExitStack()
        self._benches: dict[str, Bench] = {}
        self._done, self._total = 0, 0

    def close(self) -> None:
        self._stack.close()

    @functools.cached_property
    def opened(self) -> OpenRun:
        """Data and snapshots are opened when a study first asks for them."""
        return self._stack.enter_context(open_run(self.workdir, data_dir=self.data_dir))

    def bench(self, objective: str = "base") -> Bench:
        """The bench of a trajectory, which must be there as a whole."""
        if objective not in self._benches:
            self._benches[objective] = Bench(self.opened, objective, self._tick)
        bench = self.used[objective] = self._benches[objective]
        if bench.stages < 2:
            raise UserError("the run has one task, so that no class is old")
        return bench

    def objectives(self) -> list[str]:
        """Trajectories of which every snapshot is there."""
        found = []
        for objective in self.opened.objectives():
            with contextlib.suppress(UserError):
                self.opened.trajectory(objective)
                found.append(objective)
        return found

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
        self.opened.work.stop_if_preempted()  # studies before this one are on disk
