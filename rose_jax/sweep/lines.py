"""What a sweep shows: on a terminal a live line for each run, elsewhere a plain line when something happens."""

import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rose_jax.errors import INTERRUPTED_EXIT_CODE
from rose_jax.sweep.schedule import PREEMPTED_EXIT_CODE, Task

SECONDS_BETWEEN_LINES = 60.0
SECONDS_BETWEEN_LOOKS = 1.0
TAIL_BYTES = 4096


class Lines:
    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._drawn = 0  # lines on the terminal that are ours
        self._looked = 0.0
        self._told: dict[str, tuple[str, float]] = {}  # run -> what was said of it last, and when

    def show(self, tasks: Sequence[Task]) -> None:
        now = time.monotonic()
        ended = any(
            task.code is not None and self._told.get(task.run.name, ("",))[0] != state(task) for task in tasks
        )
        if now - self._looked < SECONDS_BETWEEN_LOOKS and not ended:
            return
        self._looked = now
        if self._live:
            self._draw(tasks)
        else:
            self._tell(tasks, now)

    def _draw(self, tasks: Sequence[Task]) -> None:
        """All runs if there is room, else those under way and a count of the others."""
        width, height = shutil.get_terminal_size()
        shown, rest = list(tasks), ""
        if len(tasks) > height - 2:
            shown = [task for task in tasks if task.running][: height - 3]
            done, waiting = sum(task.code == 0 for task in tasks), sum(task.job is None for task in tasks)
            failed = sum(bool(task.code) for task in tasks)
            rest = f"{len(tasks)} runs: {done} done, {failed} failed, {waiting} waiting"
        names = max((len(task.run.name) for task in tasks), default=0)
        lines = [f"{task.run.name:<{min(names, width // 2)}}  {state(task)}" for task in shown]
        lines += [rest] if rest else []
        up = f"\033[{self._drawn}F" if self._drawn else ""
        text = "".join(f"\033[2K{line[: width - 1]}\n" for line in lines)
        self._stream.write(f"{up}{text}\033[J")
        self._stream.flush()
        self._drawn = len(lines)
        self._told = {task.run.name: (state(task), 0.0) for task in tasks}

    def _tell(self, tasks: Sequence[Task], now: float) -> None:
        for task in tasks:
            if task.job is None:
                continue
            said, when = self._told.get(task.run.name, ("", -SECONDS_BETWEEN_LINES))
            words = state(task)
            due = not said or task.code is not None or now - when >= SECONDS_BETWEEN_LINES
            if words != said and due:
                self._told[task.run.name] = (words, now)
                print(time.strftime("%H:%M:%S"), f"{task.run.name}: {words}", file=self._stream, flush=True)


def state(task: Task) -> str:
    """One line on how a run goes."""
    if task.job is None:
        return "waiting"
    if task.code is None:
        return f"[{task.job.place}] {(last_lines(task, 1) or ['started'])[0]}"
    minutes, seconds = divmod(round(task.seconds), 60)
    if task.code in (PREEMPTED_EXIT_CODE, INTERRUPTED_EXIT_CODE):
        return reason(task.code)
    return f"done in {minutes}:{seconds:02d}" if task.code == 0 else f"FAILED, {reason(task.code)}"


def reason(code: int) -> str:
    """What an exit code says."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL; was the machine out of memory?"
    if code in (PREEMPTED_EXIT_CODE, INTERRUPTED_EXIT_CODE):
        return "stopped, and saved before"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def last_lines(task: Task, count: int) -> list[str]:
    """Of what the run has written since it was started, without the time of day and without control characters."""
    try:
        with Path(task.log).open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - TAIL_BYTES, min(task.log_begin, end)))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [re.sub(r"[^\x20-\x7e\u00a0-\uffff]", " ", line).rstrip() for line in text.splitlines()]
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines if re.search(r"\w", line)][-count:]
