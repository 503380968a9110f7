"""Optional places for the lines of metrics.jsonl: TensorBoard and Weights & Biases, each an extra to install.

metrics.jsonl is the record; these only display it. A writer that fails is dropped with a warning.
"""

import dataclasses
import importlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from rose_jax.config import Config
from rose_jax.errors import UserError, unknown
from rose_jax.runtime.files import write_text

Line = dict[str, Any]
_NOT_MEASURED = ("kind", "objective", "task", "step", "steps")


class Writer(Protocol):
    def __call__(self, line: Line) -> None:
        """Takes one line of metrics.jsonl, with its "objective"."""

    def close(self) -> None: ...


def check_writers(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in WRITERS:
            raise unknown("writer", name, WRITERS)


def make_writers(names: tuple[str, ...], workdir: Path, config: Config) -> list[Writer]:
    """A writer for each name ("tensorboard", "wandb"). Call it on one process only."""
    check_writers(names)
    return [_Droppable(name, WRITERS[name](Path(workdir), config)) for name in names]


class TensorBoard:
    """One TensorBoard run per objective and task, below workdir/tensorboard, so that tasks lie side by side."""

    def __init__(self, workdir: Path, config: Config):
        self._module = _load("tensorboardX", "tensorboard")
        self._folder = workdir / "tensorboard"
        self._run = ""
        self._events: Any = None  # a SummaryWriter

    def __call__(self, line: Line) -> None:
        run = _run_name(line)
        if run != self._run:
            self.close()
            # purge_step: what was drawn after the step where a resumed task continues is dropped.
            self._events = self._module.SummaryWriter(str(self._folder / run), purge_step=line["step"])
            self._run = run
        for name, value in _measured(line).items():
            self._events.add_scalar(f"{line['kind']}/{name}", value, line["step"])
        self._events.flush()  # lines are rare, and a killed run should keep what it logged

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        self._run, self._events = "", None


class WeightsAndBiases:
    """One W&B run per workdir; a curve per objective and task over the step within the task."""

    def __init__(self, workdir: Path, config: Config):
        module = _load("wandb", "wandb")
        try:
            self._wandb = module.init(
                project="rose_jax",
                name=workdir.name,
                id=_run_id(workdir),
                resume="allow",
                dir=str(workdir),
                config=dataclasses.asdict(config),
            )
        except Exception as error:  # not logged in, no network, ...: wandb has an exception for each
            raise UserError(
                f"Weights & Biases did not start: {error}. Run `wandb login`, set WANDB_MODE=offline, or leave "
                "wandb out of --writers."
            ) from error
        self._last_step: dict[str, int] = {}

    def __call__(self, line: Line) -> None:
        run = _run_name(line)
        if run not in self._last_step:
            self._wandb.define_metric(f"{run}/*", step_metric=f"{run}/step")
            self._last_step[run] = int(self._wandb.summary.get(f"{run}/step") or 0)
        if line["step"] <= self._last_step[run]:
            return  # a resumed run repeats these lines bit for bit, and W&B cannot replace them
        self._last_step[run] = line["step"]
        measured = {"step": line["step"]} | _measured(line)
        self._wandb.log({f"{run}/{name}": value for name, value in measured.items()})

    def close(self) -> None:
        self._wandb.finish()


WRITERS: dict[str, Callable[[Path, Config], Writer]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


class _Droppable:
    """Calls a writer until it fails, and never after that."""

    def __init__(self, name: str, writer: Writer):
        self._name, self._writer = name, writer
        self._works = True

    def __call__(self, line: Line) -> None:
        self._try(lambda: self._writer(line))

    def close(self) -> None:
        self._try(self._writer.close)

    def _try(self, act: Callable[[], None]) -> None:
        if not self._works:
            return
        try:
            act()
        except Exception as error:
            self._works = False
            logging.warning("The %s writer failed and is left out from now on: %s", self._name, error)


def _load(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"--writers {extra} needs the package {module}, which is not installed. Install it with\n"
            f"  pip install 'rose-jax[{extra}]'"
        ) from None


def _run_name(line: Line) -> str:
    return f"{line['objective']}/task_{line['task']:03d}"


def _measured(line: Line) -> dict[str, float]:
    numbers = {name: value for name, value in line.items() if name not in _NOT_MEASURED}
    if numbers.get("seconds"):
        numbers["images_per_second"] = numbers["images"] / numbers["seconds"]
    return {name: float(v) for name, v in numbers.items() if isinstance(v, (int, float))}


def _run_id(workdir: Path) -> str:
    """Kept in the workdir, so that a resumed run continues its own curves."""
    path = workdir / "wandb" / "run_id"
    if not path.exists():
        write_text(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()
