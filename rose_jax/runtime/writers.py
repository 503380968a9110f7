"""Optional places for the lines of metrics.jsonl: TensorBoard and Weights & Biases, each an extra to install.

metrics.jsonl is the record; these only display it. A writer that fails is left out with a warning.
"""

import dataclasses
import importlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rose_jax.config import Config
from rose_jax.errors import UserError, unknown
from rose_jax.runtime.files import write_text

Write = Callable[
    [str, dict[str, Any], dict[str, float]], None
]  # (objective and task, the line, its measured numbers)
Close = Callable[[], None]
_NOT_MEASURED = ("kind", "objective", "task", "step", "steps")


def check_writers(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in WRITERS:
            raise unknown("writer", name, WRITERS)


class Writer:
    """Takes lines of metrics.jsonl until it fails, and none after that. On one process only."""

    def __init__(self, name: str, workdir: Path, config: Config):
        check_writers((name,))
        package, start = WRITERS[name]
        try:
            module = importlib.import_module(package)
        except ImportError:
            raise UserError(
                f"--writers {name} needs the package {package}, which is not installed. Install it with\n"
                f"  pip install 'rose-jax[{name}]'"
            ) from None
        self._name, self._works = name, True
        self._write, self._close = start(module, Path(workdir), config)

    def __call__(self, line: dict[str, Any]) -> None:
        self._try(lambda: self._write(f"{line['objective']}/task_{line['task']:03d}", line, _measured(line)))

    def close(self) -> None:
        self._try(self._close)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            if self._works:
                act()
        except Exception as error:
            self._works = False
            logging.warning("The %s writer failed and is left out from now on: %s", self._name, error)


def _tensorboard(module: Any, workdir: Path, config: Config) -> tuple[Write, Close]:
    """One TensorBoard run per objective and task, below workdir/tensorboard, so that tasks lie side by side."""
    current = ""
    events: Any = None  # a SummaryWriter

    def write(run: str, line: dict[str, Any], measured: dict[str, float]) -> None:
        nonlocal current, events
        if run != current:
            close()
            # purge_step: what was drawn after the step where a resumed task continues is dropped.
            events = module.SummaryWriter(str(workdir / "tensorboard" / run), purge_step=line["step"])
            current = run
        for name, value in measured.items():
            events.add_scalar(f"{line['kind']}/{name}", value, line["step"])
        events.flush()  # lines are rare, and a killed run should keep what it logged

    def close() -> None:
        if events is not None:
            events.close()

    return write, close


def _wandb(module: Any, workdir: Path, config: Config) -> tuple[Write, Close]:
    """One W&B run per workdir; a curve per objective and task over the step within the task."""
    id_file = workdir / "wandb" / "run_id"  # so that a resumed run continues its own curves
    try:
        if not id_file.exists():
            write_text(id_file, secrets.token_hex(8) + "\n")
        options = {"id": id_file.read_text().strip(), "dir": str(workdir), "config": dataclasses.asdict(config)}
        wandb = module.init(project="rose_jax", name=workdir.name, resume="allow", **options)
    except Exception as error:  # not logged in, no network, ...: wandb has an exception for each
        raise UserError(
            f"Weights & Biases did not start: {error}. Run `wandb login`, set WANDB_MODE=offline, or leave "
            "wandb out of --writers."
        ) from error
    last_step: dict[str, int] = {}

    def write(run: str, line: dict[str, Any], measured: dict[str, float]) -> None:
        if run not in last_step:
            wandb.define_metric(f"{run}/*", step_metric=f"{run}/step")
            last_step[run] = int(wandb.summary.get(f"{run}/step") or 0)
        if line["step"] > last_step[run]:  # a resumed run repeats lines bit for bit, and W&B cannot replace them
            last_step[run] = line["step"]
            wandb.log({f"{run}/{name}": value for name, value in ({"step": line["step"]} | measured).items()})

    return write, wandb.finish


WRITERS = {"tensorboard": ("tensorboardX", _tensorboard), "wandb": ("wandb", _wandb)}  # each with its package


def _measured(line: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in line.items() if name not in _NOT_MEASURED}
    if numbers.get("seconds"):
        numbers["images_per_second"] = numbers["images"] / numbers["seconds"]
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
