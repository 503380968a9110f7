"""Becomes the ordinary command, after what only the process itself can arrange:

    python -m rose_jax.sweep.child CORES COMMAND ARGUMENT ...

It runs on the cores that are given ("0,1"; "-" is all), and ends when its parent does, lest a run whose sweep was
killed keeps its device and its workdir.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(cores: str, *command: str) -> None:
    if cores != "-" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    _end_with_parent()
    os.execv(command[0], command)


def _end_with_parent() -> None:
    """On Linux; other systems have no such thing, and an orphan finishes its run."""
    if sys.platform == "linux":
        parent = os.getppid()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended just before
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
