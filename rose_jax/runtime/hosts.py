"""Several processes that run one command: they start, agree on values, and stop together."""

import contextlib
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError
from rose_jax.runtime.sharding import Layout

START_SECONDS = 300  # a job's hosts may start minutes apart
# If a host dies, the others should end soon; with jax's defaults of 100 and 300 s they wait for minutes.
HEARTBEAT_SECONDS = 60
SHUTDOWN_SECONDS = 15
PREEMPTED_EXIT_CODE = 75  # EX_TEMPFAIL: nothing is wrong, run the same command again


class Preempted(Exception):
    """Raised after a SIGTERM or a Ctrl-C, once everything is saved."""

    def __init__(self, message: str, by_hand: bool = False):
        super().__init__(message)
        # A loop that starts again what was preempted should not start what somebody interrupted by hand.
        self.exit_code = INTERRUPTED_EXIT_CODE if by_hand else PREEMPTED_EXIT_CODE


def start(coordinator: str = "", num_processes: int = 0, process_id: int = -1) -> None:
    """Joins the other processes; without arguments, jax detects them (TPU pods, SLURM, Kubernetes)."""
    given = (bool(coordinator), num_processes > 0, process_id >= 0)
    if any(given) and not all(given):
        raise UserError(
            "--coordinator host:port, --num_processes N and --process_id I belong together; give all three, or none "
            "where jax detects them (TPU pods, SLURM, Kubernetes)."
        )
    if all(given) and process_id >= num_processes:
        raise UserError(f"--process_id {process_id} is not below --num_processes {num_processes}.")
    if coordinator and not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"--coordinator {coordinator!r} is not of the form host:port.")
    place = f"{num_processes} processes were to meet at {coordinator}" if coordinator else "as jax detects them"
    too_late = (
        f"error: The processes did not find each other within {START_SECONDS} s ({place}). Are all running, "
        "can each reach that address, and is --num_processes their number?\n"
    )

    def end() -> None:  # jax's own time-out would abort in C++ with a stack trace
        os.write(2, too_late.encode())
        os._exit(2)

    timer = threading.Timer(START_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator or None,
            num_processes if all(given) else None,
            process_id if all(given) else None,
            initialization_timeout=2 * START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        if not any(given):
            raise UserError(
                "--distributed alone is for places where jax finds the other processes by itself (TPU pods, SLURM, "
                f"Kubernetes); here it does not: {str(error).rstrip('.')}. Leave it out to run one process, or give --coordinator "
                "host:port, --num_processes N and --process_id I as well."
            ) from None
        raise UserError(f"The processes did not find each other: {error}") from None
    finally:
        timer.cancel()
    # One sum over all devices, as training will do. On CPUs the first one connects them and fails if processes
    # arrive over 30 s apart, as they may after compiling a training step. `barrier` does not connect this group.
    barrier("start")
    layout = Layout()
    ones = layout.split(np.ones(layout.num_devices, np.float32))
    jax.block_until_ready(jax.jit(jnp.sum, out_shardings=layout.replicated)(ones))


def agree_on_number(value: int) -> int:
    """Process 0's value, on all processes, so that all decide alike what depends on files."""
    return int(share(np.int32(value)))


def agree(value: bool) -> bool:
    return bool(agree_on_number(int(value)))


def by_process_0(act: Callable[[], None], what: str) -> None:
    """Process 0 does it. If it raises a UserError, so do the others, lest they wait for one that has left."""
    refusal = None
    if jax.process_index() == 0:
        try:
            act()
        except UserError as error:
            refusal = error
    if not agree(refusal is None):
        raise refusal or UserError(f"Process 0 refused {what}; its message says why.")


def barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def share(tree: Any) -> Any:
    """Process 0's arrays, bit for bit, on all processes; shapes and types must be the same everywhere."""
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    own = [np.asarray(leaf) for leaf in leaves]
    sent = multihost_utils.broadcast_one_to_all([np.frombuffer(array.tobytes(), np.uint8) for array in own])
    theirs = [
        np.frombuffer(np.asarray(raw).tobytes(), a.dtype).reshape(a.shape)
        for raw, a in zip(sent, own, strict=True)
    ]
    return jax.tree.unflatten(structure, theirs)


def gather_text(text: str) -> list[str]:
    """The texts of all processes, in the order of their ids."""
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    longest = int(np.max(multihost_utils.process_allgather(np.int32(len(own)))))
    rows = multihost_utils.process_allgather(np.pad(own, (0, longest - len(own))))
    return [bytes(row).rstrip(b"\0").decode() for row in np.asarray(rows)]


def check_shared(folder: Path) -> None:
    """An error unless all processes see what process 0 writes: all of them read checkpoints and outcomes."""
    if jax.process_count() == 1:
        return
    token = agree_on_number(uuid.uuid4().int % 2**31)
    path = folder / f".shared_{token}"
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):  # then no process sees the token
            path.write_text("")
    barrier("token written")
    seen = path.exists()
    everywhere = int(np.min(multihost_utils.process_allgather(np.int32(seen))))
    if jax.process_index() == 0:
        path.unlink(missing_ok=True)
    if not everywhere:
        raise UserError(
            f"The workdir {folder} is not the same folder on every host, or process 0 may not write to it. "
            "Put it on a shared file system and give its path as --workdir."
        )


class Preemption:
    """Notices SIGTERM and Ctrl-C. With several processes jax notices SIGTERM, and all of them stop at the same step."""

    def __init__(self) -> None:
        self._asked = self._by_hand = False
        self._calls = 0
        self._previous: dict[signal.Signals, Any] = {}
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                if (
                    signal.getsignal(number) is not signal.SIG_IGN
                ):  # as a shell has it for what runs in the background
                    self._previous[number] = signal.signal(number, self._note)

    def asked(self) -> bool:
        """Whether to save and stop now. All processes must call it equally often."""
        self._calls += 1
        if jax.process_count() > 1:
            # jax says True only once, at the first call that all processes can reach: remember it
            self._asked |= multihost_utils.reached_preemption_sync_point(self._calls)
        return self._asked

    def stop(self, message: str) -> NoReturn:
        """To be called when all is saved."""
        raise Preempted(message, self._by_hand)

    def close(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self._asked, self._by_hand = True, number == signal.SIGINT
        if self._by_hand:  # a second one does not wait
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.write(2, b"\nCtrl-C: finishing the step, then saving. Once more stops at once.\n")
        else:
            os.write(2, b"\nSIGTERM: finishing the step, then saving.\n")
