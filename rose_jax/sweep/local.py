"""Runs on this machine: a child process for each, with one device or some cores to itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rose_jax.sweep.plan import Run


@dataclass(frozen=True)
class Slot:
    """A place for one run at a time."""

    place: str  # for the display
    environment: Mapping[str, str]
    cores: str = "-"  # as child.py takes them


class Local:
    shares_cache = True

    def __init__(self, slots: Sequence[Slot], command: Sequence[str], more: Sequence[str] = ()):
        """command: what `run.arguments` are given to; more: further arguments of every run."""
        self._free, self._command, self._more = list(slots), list(command), list(more)

    def free(self) -> bool:
        return bool(self._free)

    def start(self, run: Run, log: Path) -> "Child":
        slot = self._free.pop(0)
        return Child([*self._command, *run.arguments, *self._more], slot, log, self._free)


class Child:
    def __init__(self, command: Sequence[str], slot: Slot, log: Path, free: list[Slot]):
        self.place, self._slot, self._slots = slot.place, slot, free
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rose_jax.sweep.child", slot.cores, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environment},
                start_new_session=True,  # a terminal's Ctrl-C comes to it through the sweep, once
            )

    def ended(self) -> int | None:
        code = self._process.poll()
        if code is not None and self._slot not in self._slots:
            self._slots.append(self._slot)
        return code

    def signal(self, number: int) -> None:
        self._process.send_signal(signal.Signals(number))


def slots_for(platform: str, devices: int, parallel: int = 0) -> list[Slot]:
    """One for each device; on CPUs one in all, or `parallel` with as many cores each as there are for them."""
    if platform == "cpu":
        return _on_cores(max(parallel, 1))
    number = min(parallel or devices, devices)
    visible = {"tpu": "TPU_VISIBLE_CHIPS"}.get(platform, "CUDA_VISIBLE_DEVICES")
    allowed = os.environ.get(visible, "")  # what this process may see itself
    names = [name.strip() for name in allowed.split(",")] if allowed else [str(i) for i in range(devices)]
    alone = {}
    if (
        platform == "tpu"
    ):  # a process that has one chip is a slice of its own; libtpu refuses a second one otherwise
        alone = {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}
        alone |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    return [Slot(f"{platform} {name}", {visible: name, **alone}) for name in names[:number]]


def _on_cores(parallel: int) -> list[Slot]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    share = len(cores) // parallel
    if parallel == 1 or not share:  # as the command alone has it; or too few cores to give each its own
        return [Slot("cpu" if parallel == 1 else f"cpu, {i + 1} of {parallel}", {}) for i in range(parallel)]
    found = []
    for i in range(parallel):
        own = ",".join(map(str, cores[i * share : (i + 1) * share]))
        found.append(Slot(f"cpu {own}", {}, own))
    return found
