"""The display of a run: a bar per task on a terminal, a plain line now and then anywhere else."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

SECONDS_BETWEEN_LINES = 30.0
# The pace is the mean over so many of the newest log lines, and over so many seconds of work at least: of short steps,
# ten would be no evidence, and one that compiles would be all of it.
_WINDOWS, _WINDOW_SECONDS = 10, 60.0
_BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


class Progress:
    """Shows the lines of metrics.jsonl, without work for the device; its errors do not end a run.

    Bars need a terminal; without one, a line is written now and then and at each task's end. Give enabled=False on
    all processes but one. As a context manager it also prints log messages above the bar.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        enabled: bool = True,
        bars: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stream, self._enabled, self._clock = stream or sys.stderr, enabled, clock
        if bars is None:
            bars = not self._stream.closed and self._stream.isatty()
        self._bars = enabled and bars
        self._bar: _Bar | None = None
        self._stack = contextlib.ExitStack()
        self._last_time = clock()
        self._forget()
        self._label, self._pace = "", 0.0  # seconds per step
        self._begin("", 0, 0)

    def __enter__(self) -> "Progress":
        if self._bars:
            self._stack.enter_context(logging_redirect_tqdm())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self._stack.close()

    def task(
        self, index: int, tasks: int, steps: int, *, first: int = 0, steps_after: int = 0, label: str = ""
    ) -> None:
        """Task `index` (from 0) of `tasks` begins at step `first` of `steps`; a resumed one has first > 0.

        `steps_after`: steps of the tasks still to come, for the run's ETA. `label`: the objective, if several.
        """
        if label != self._label:  # another objective has another pace; a later task's begins as the last one's was
            self._forget()
            self._label = label
        self._begin(f"{label} task {index + 1}/{tasks}".lstrip(), first, steps_after)

    def update(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl; kinds other than "train" have no bar to move."""
        if self._enabled and line.get("kind") == "train":
            rate = line["images"] / max(line["seconds"], 1e-9)
            fields = [f"{rate:.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s"]
            fields += [f"loss {line['loss']:.4g}"] if "loss" in line else []
            epoch = f"epoch {line['epoch'] + 1}"
            self._show(line["step"], line["steps"], line["seconds"], [epoch], "step ", fields)

    def count(self, title: str, done: int, total: int, seconds: float, note: str = "") -> None:
        """Other long work: `done` of `total` things are finished, the last in `seconds`."""
        if title != self._title:
            self._forget()
            self._begin(title, 0, 0)
        self._show(done, total, seconds, [], "", [note] if note else [])

    def stage(self, summary: str) -> None:
        """A task is trained and scored: its bar stays as it is, and the summary line follows."""
        self.close()
        self._print(summary)

    def close(self) -> None:
        if self._bar is not None:
            self._try(self._bar.close)
            self._bar = None

    def _forget(self) -> None:
        self._windows: deque[tuple[int, float]] = deque()  # steps and seconds of the newest lines
        self._sums = (0, 0.0)

    def _begin(self, title: str, first: int, steps_after: int) -> None:
        self.close()
        self._title, self._step, self._steps_after = title, first, steps_after
        self._compiled = False  # whether a line of this task came before

    def _show(self, done: int, total: int, seconds: float, before: list[str], unit: str, after: list[str]) -> None:
        window = max(done - self._step, 1), seconds
        if not self._compiled and not self._windows:
            self._pace = seconds / window[0]
        elif self._compiled:  # a task's first line may include compilation, so the average begins with the second
            self._windows.append(window)
            steps, spent = self._sums[0] + window[0], self._sums[1] + window[1]
            while len(self._windows) > _WINDOWS and spent - self._windows[0][1] >= _WINDOW_SECONDS:
                oldest = self._windows.popleft()
                steps, spent = steps - oldest[0], spent - oldest[1]
            self._sums, self._pace = (steps, spent), spent / steps
        self._compiled, self._step = True, done
        run = f", run {self._time(total - done + self._steps_after)}" if self._steps_after else ""
        after = [*after, f"ETA {self._time(total - done)}{run}"]
        if self._bars:
            self._try(lambda: self._move_bar(done, total, "  ".join([*before, *after])))
        elif done >= total or self._clock() - self._last_time >= SECONDS_BETWEEN_LINES:
            self._print("  ".join([self._title, *before, f"{unit}{done}/{total}", *after]))

    def _move_bar(self, done: int, total: int, text: str) -> None:
        if self._bar is None:  # made here, so that tasks read from disk draw none
            look: dict[str, Any] = {"bar_format": _BAR, "dynamic_ncols": True, "mininterval": 0}
            self._bar = _Bar(desc=self._title, total=total, file=self._stream, **look)
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.total, self._bar.n = total, done
        self._bar.refresh()

    def _time(self, steps: int) -> str:
        hours, rest = divmod(round(self._pace * max(steps, 0)), 3600)
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"

    def _print(self, text: str) -> None:
        self._last_time = self._clock()
        if self._bars:  # print would break the bars of other tasks
            self._try(lambda: tqdm.write(text, file=self._stream))
        elif self._enabled:
            self._try(lambda: print(time.strftime("%H:%M:%S"), text, file=self._stream, flush=True))

    def _try(self, show: Callable[[], Any]) -> None:
        """If the terminal is gone (a dropped connection), only the display ends."""
        try:
            show()
        except (OSError, ValueError):
            self._enabled = self._bars = False


class _Bar(tqdm):
    monitor_interval = 0  # no thread of tqdm's: only log lines redraw the bar
