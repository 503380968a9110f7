"""Runs on a Ray cluster: each is a task that asks for one GPU, one TPU chip, or on CPUs a share of a machine.

Ray places a task, sets its visible devices, and starts it again elsewhere if its machine dies; the run continues from its
workdir, on a folder that all machines share or filled from --mirror. The repository lies at the same path everywhere.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rose_jax.errors import UserError
from rose_jax.sweep import survey
from rose_jax.sweep.lines import TAIL_BYTES
from rose_jax.sweep.plan import Run

RETRIES = 20  # of a run whose machine died
# What a run reads of its environment. Ray sets OMP_NUM_THREADS, and with another number of threads sums round otherwise.
PASSED_ON = ("JAX_", "XLA_", "ROSE_JAX_", "NPROC", "OMP_NUM_THREADS", "PYTHONPATH")


class OnRay:
    shares_cache = False  # each machine has its own

    def __init__(self, address: str, parallel: int = 0, more: Sequence[str] = ()):
        """address: host:port, ray://host:port, or auto; parallel: on CPUs, runs at a time on one machine."""
        try:
            import ray
        except ImportError:
            raise UserError(
                "--ray needs the package ray, which is not installed. Install it with\n  pip install 'rose-jax[ray]'"
            ) from None
        self._ray, self._more = ray, list(more)
        try:
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="warning")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"There is no Ray cluster at {address} ({error}). Start one with `ray start --head` and give its address."
            ) from None
        self._wanted = _one_device(ray.nodes(), parallel)

    def survey(self, runs: Sequence[Sequence[str]]) -> survey.Survey:
        """The runs are checked on one of the machines, where the data is."""
        task = self._ray.remote(num_cpus=0, max_retries=RETRIES)(_survey)
        return self._ray.get(task.remote([list(run) for run in runs], os.getcwd(), _environment()))

    def free(self) -> bool:
        return True  # Ray has a queue of its own

    def start(self, run: Run, log: Path) -> "RayJob":
        task = self._ray.remote(max_retries=RETRIES, **self._wanted)(_execute)
        arguments = [*run.arguments, *self._more]
        reference = task.remote(arguments, os.getcwd(), str(log.absolute()), _environment())
        return RayJob(self._ray, reference, log)


class RayJob:
    place = "ray"

    def __init__(self, ray: Any, reference: Any, log: Path):
        self._ray, self._reference, self._log = ray, reference, log

    def ended(self) -> int | None:
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            code, written = self._ray.get(self._reference)
        except self._ray.exceptions.TaskCancelledError:  # before it was started
            return -signal.SIGTERM
        except self._ray.exceptions.RayError as error:
            code, written = 1, f"{type(error).__name__}: {error}\n".encode()
        if not self._log.exists():  # it was written on another machine
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._log.write_bytes(written)
        return code

    def signal(self, number: int) -> None:
        self._ray.cancel(self._reference, force=False)


def _one_device(nodes: Sequence[Mapping[str, Any]], parallel: int) -> dict[str, Any]:
    """What a run asks Ray for."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    if any(found.get("TPU") for found in resources):
        return {"num_cpus": 0, "resources": {"TPU": 1}}
    if any(found.get("GPU") for found in resources):
        return {"num_cpus": 0, "num_gpus": 1}
    cores = [int(found["CPU"]) for found in resources if found.get("CPU")]
    if not cores:
        raise UserError("The Ray cluster has no CPU, no GPU and no TPU to run on.")
    return {"num_cpus": max(min(cores) // max(parallel, 1), 1)}


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON)}


def _with(environment: Mapping[str, str]) -> dict[str, str]:
    """This machine's, with the sweep's own where a run reads it."""
    here = {key: value for key, value in os.environ.items() if not key.startswith(PASSED_ON)}
    return {**here, **environment}


# On the machine of the run.


def _survey(runs: list[list[str]], folder: str, environment: dict[str, str]) -> survey.Survey:
    os.chdir(folder)
    return survey.ask(runs, _with(environment) | {"JAX_PLATFORMS": "cpu"})


def _execute(arguments: list[str], folder: str, log: str, environment: dict[str, str]) -> tuple[int, bytes]:
    """The ordinary command in a process of its own: its exit code and the end of its log."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rose_jax.main", *arguments]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rose_jax.sweep.child", "-", *command],
            cwd=folder,
            env=_with(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait()
    except KeyboardInterrupt:  # so ray.cancel is told: save and stop
        with contextlib.suppress(KeyboardInterrupt):
            process.send_signal(signal.SIGTERM)
            code = process.wait()
            return code, Path(log).read_bytes()[-TAIL_BYTES:]
        process.kill()
        code = process.wait()
    return code, Path(log).read_bytes()[-TAIL_BYTES:]
