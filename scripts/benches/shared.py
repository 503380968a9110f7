"""What the benchmarks share: timing in turns, ratios and their spread, tables, claims, the line about the machine."""

import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rose_jax.runtime.files import write_json

Times = dict[str, np.ndarray]  # seconds [rounds] of each thing that took turns
Row = dict[str, Any]  # cells by column


class Ratio(NamedTuple):
    median: float
    low: float  # quartiles
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def timed(run: Callable, *arguments: Any, clock=time.perf_counter) -> tuple[Any, float]:
    """What it returns, computed, and the seconds that took."""
    begun = clock()
    result = jax.block_until_ready(run(*arguments))
    return result, clock() - begun


def in_turns(
    runs: dict[str, Callable], rounds: int, *, per: int = 1, prepare: Callable = tuple, clock=time.perf_counter
) -> Times:
    """Seconds of each, divided by `per`. A first round, not counted, compiles; every second one goes backwards.

    prepare: makes the arguments of a call, outside the clock. clock: with time.process_time it is CPU time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name in runs if turn % 2 == 0 else reversed(runs):
            arguments = jax.block_until_ready(prepare())
            seconds[name].append(timed(runs[name], *arguments, clock=clock)[1])
    return {name: np.asarray(values[1:]) / per for name, values in seconds.items()}


def ratio(one: np.ndarray, other: np.ndarray) -> Ratio:
    """Round by round, for what slows a round down slows both."""
    low, median, high = np.quantile(one / other, (0.25, 0.5, 0.75)).tolist()
    return Ratio(median, low, high)


def by_rows(times: Times, base: str, per: str = "image") -> dict[str, Row]:
    """A table with a row for each thing that took turns."""
    ms = f"ms per {per}"
    return {k: {ms: 1e3 * float(np.median(v)), f"x {base}": ratio(v, times[base])} for k, v in times.items()}


def by_columns(times: Times, base: str) -> Row:
    """A row with a column for each thing that took turns, and one for its ratio to the base."""
    row: Row = {f"{k}, ms per image": 1e3 * float(np.median(v)) for k, v in times.items()}
    return row | {f"{k} / {base}": ratio(v, times[base]) for k, v in times.items() if k != base}


class Report:
    """Prints tables as they come, in Markdown, and keeps them for the JSON file."""

    def __init__(self, name: str):
        self.name, self.tables, self.claims = name, {}, {}

    def table(self, title: str, rows: dict[str, Row]) -> None:
        """A column that only some rows have is empty in the others."""
        if not self.tables:  # not earlier: a bench may bind the process to a core before jax starts
            print(f"bench.py {self.name}: {machine()}")
        self.tables[title] = rows
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        body = [[name, *(_cell(row.get(column, "")) for column in columns)] for name, row in rows.items()]
        widths = [max(3, *map(len, cells)) for cells in zip(["", *columns], *body, strict=True)]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        print(f"\n{title}\n")
        for first, *cells in (["", *columns], rule, *body):
            padded = [first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]
            print("| " + " | ".join(padded) + " |", flush=True)

    def claim(self, name: str, value: float | Ratio, sign: str, bound: float) -> None:
        """sign: ">=" or "<="."""
        number = value.median if isinstance(value, Ratio) else value
        holds = number >= bound if sign == ">=" else number <= bound
        verdict = "holds" if holds else "MISSED"
        self.claims[name] = {"value": value, "bound": f"{sign} {bound:g}", "verdict": verdict}

    def close(self, path: Path | None) -> int:
        """Shows the claims, writes the file, and returns the exit code."""
        if self.claims:
            self.table("claims", self.claims)
        if path:
            write_json(path, {"bench": self.name, "machine": machine(), "tables": self.tables})
            print(f"\nwritten: {path}")
        return int(any(row["verdict"] == "MISSED" for row in self.claims.values()))


def machine() -> str:
    """Where and when the figures were measured."""
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores ({platform.machine()})"
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return f"{cores}, {devices}, jax {jax.__version__}, {datetime.date.today()}"


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
