"""The folder of a run: one config, one process at a time, one log whose lines follow the restored step."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from rose_jax.config import Config
from rose_jax.errors import UserError
from rose_jax.runtime import hosts, siblings
from rose_jax.runtime.agreement import LAYOUT, difference, differing_options, flatten, told
from rose_jax.runtime.files import is_leftover, refuse_address, write_text
from rose_jax.runtime.mirror import Mirror, check_mirror
from rose_jax.runtime.profiler import Profiler
from rose_jax.runtime.progress import Progress
from rose_jax.runtime.writers import Writer, check_writers


class Workdir:
    def __init__(
        self,
        path: Path,
        config: Config,
        data: str = "",
        overwrite: bool = False,
        writers: tuple[str, ...] = (),
        profile_steps: int = 0,
        share: bool = False,
        mirror: str = "",
    ):
        """share: what runs beside this one have made of the same options is taken over.

        mirror: where a copy is kept, a URL as fsspec has them; an empty workdir is filled from it.
        """
        refuse_address("--workdir", path)
        self.path, self.config, self.data, self.overwrite = Path(path).absolute(), config, data, overwrite
        self.metrics_path = self.path / "metrics.jsonl"
        self.profiler = Profiler(self.path / "profile", profile_steps)
        self.share, self.siblings = share, siblings.Siblings(self.path)
        self._writer_names = writers
        self.writers: list[Writer] = []  # further sinks of the log's lines
        if mirror:
            check_mirror(mirror, self.path)
        self._mirror = Mirror(mirror, self.path) if mirror else None
        self._ending = "stopped"

    def __enter__(self) -> "Workdir":
        with self._possible("make"):
            self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            self._check_alike()
            hosts.check_shared(self.path)
            hosts.by_process_0(lambda: self._open(undo), f"the workdir {self.path}")
            self.preemption = undo.enter_context(contextlib.closing(hosts.Preemption()))
            self.progress = undo.enter_context(Progress(enabled=jax.process_index() == 0))
            undo.callback(self.profiler.close)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending = "stopped" if exception[0] else "done"
        self._undo.close()

    def _open(self, undo: contextlib.ExitStack) -> None:
        check_writers(self._writer_names)  # before anything is overwritten
        with self._possible("write to"):
            lock = undo.enter_context((self.path / ".lock").open("a"))  # it dies with its process
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"Another run is using the workdir {self.path}. Wait for it, or give another --workdir."
                ) from None
        if self._mirror and not self.overwrite:
            self._fill_from(self._mirror)
        self._claim()
        if self._mirror:
            self._mirror.start()
            undo.callback(lambda mirror: mirror.close(self._ending), self._mirror)
        if self.share:
            self.siblings = siblings.find(self.path, self._here())
        for name in self._writer_names:
            writer = Writer(name, self.path, self.config)
            self.writers.append(undo.enter_context(contextlib.closing(writer)))

    @contextlib.contextmanager
    def _possible(self, act: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"Cannot {act} the workdir {self.path}: {error.strerror}. Give another --workdir."
            ) from None

    def stop_if_preempted(self) -> None:
        """To be called where little is lost: what is not on disk yet takes seconds or minutes to do again."""
        if self.preemption.asked():
            self.preemption.stop("stopped after training; a test stream that was under way starts over")

    # The log.

    def logger(self, objective: str) -> Callable[[dict[str, Any]], None]:
        """Appends lines to metrics.jsonl, each whole: one write, flushed."""

        def log(line: dict[str, Any]) -> None:
            if jax.process_index() == 0:
                line = {"objective": objective} | line
                with self.metrics_path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    os.fsync(file.fileno())  # a checkpoint must not outlive the lines before it
                self.progress.update(line)
                for writer in self.writers:
                    writer(line)

        return log

    def lines(self, objective: str | None = None) -> list[dict[str, Any]]:
        return read_lines(self.metrics_path, objective)

    def truncate(self, objective: str, task: int, step: int) -> None:
        """Drops what an interrupted run logged after the step that is restored now."""
        if jax.process_index() == 0:
            here = (objective, task)
            self._keep_lines(
                lambda line: (line.get("objective"), line.get("task")) != here or line["step"] <= step
            )

    def _keep_lines(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        if self.metrics_path.exists():
            kept = filter(wanted, self.lines())
            write_text(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept))

    def training_summary(self, objective: str) -> dict[str, Any]:
        """Seconds and throughput of all training so far, over however many runs it took, and which others did it."""
        lines = self.lines(objective)
        seconds = sum(line["seconds"] for line in lines)
        images = sum(line["images"] for line in lines)
        found = {"seconds": round(seconds, 1), "images_per_second": round(images / max(seconds, 1e-9), 1)}
        others = dict.fromkeys(line["trained_in"] for line in lines if "trained_in" in line)
        return found | ({"trained_in": ", ".join(others)} if others else {})

    # What is taken from runs beside it.

    def take(self, paths: Iterable[Path]) -> None:
        """Files that this run would make, if a sibling has them; their names say all that they depend on."""
        if self.share:
            hosts.by_process_0(lambda: self.siblings.take(paths), f"files for {self.path}")

    def take_lines(self, run: Path, objective: str, task: int) -> None:
        """What a sibling logged of a task; to be called before its snapshot is taken. On process 0."""
        here = (objective, task)
        self._keep_lines(lambda line: (line.get("objective"), line.get("task")) != here)
        theirs = [line for line in read_lines(run / "metrics.jsonl", objective) if line.get("task") == task]
        with self.metrics_path.open("a") as file:
            for line in theirs:
                file.write(json.dumps({"trained_in": run.name} | line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    # Whose folder it is.

    def _here(self) -> dict[str, Any]:
        return {"layout": LAYOUT, "data_identity": self.data} | json.loads(self.config.to_json())

    def _check_alike(self) -> None:
        """Hosts that were started with different settings would wait for each other, or add up what differs."""
        chief, *others = (flatten(json.loads(text)) for text in hosts.gather_text(json.dumps(self._here())))
        for index, other in enumerate(others, 1):
            own = ("data.dir", "data.decode_workers", "note")  # a matter of each machine, or of its command line
            keys = [key for key in chief | other if chief.get(key) != other.get(key) and key not in own]
            if keys:
                told = "".join(
                    f"  {key}: process 0 {chief.get(key)!r}, process {index} {other.get(key)!r}\n" for key in keys
                )
                raise UserError(
                    f"The processes were not started with the same settings:\n{told}"
                    "Give the same command on every host, with the same data and the same version of the code."
                )

    def _claim(self) -> None:
        """Writes the config and the data's identity, or compares them with those that are there."""
        path, here = self.path / "config.json", self._here()
        for folder in (".", "*", "checkpoints/*", "studies/*"):  # what a run left that was killed while writing
            for file in filter(is_leftover, self.path.glob(f"{folder}/.*")):
                file.unlink(missing_ok=True)
        if path.exists():
            try:
                there = json.loads(path.read_text())
                differing = difference(there, here)
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{path} is not the config of a run ({error}). Give another --workdir, or remove what is there."
                ) from None
            if (differing or there.get("layout") != LAYOUT) and self.overwrite:
                self._clear()
            elif there.get("layout") != LAYOUT:
                raise UserError(
                    f"The workdir {self.path} was made by another version of rose_jax, whose results do not say which "
                    "encoders they came from. Give another --workdir, or --overwrite to delete that run and start over."
                )
            elif differing:
                raise UserError(
                    f"The workdir {self.path} was made with another config:\n{told(differing)}"
                    "Give another --workdir, or --overwrite to delete that run and start over."
                )
        write_text(path, json.dumps(here, indent=2) + "\n")

    def _fill_from(self, mirror: Mirror) -> None:
        """Unless the mirror holds another run, which would be lost as soon as this one is copied."""
        there = mirror.saved_config()
        differing = difference(there, self._here()) if there else []
        if differing:
            raise UserError(
                f"The mirror {mirror.store.url} holds a run with another config:\n{told(differing)}"
                "Give another --mirror or --workdir, or --overwrite to replace that run."
            )
        mirror.fill()

    # The trajectories in it.

    def trajectory_folder(self, name: str) -> Path:
        return self.path / "checkpoints" / name

    def trajectory_options(self, name: str) -> dict[str, Any] | None:
        """The options that an objective's encoders here were trained with; None if there are none."""
        return trained_options(self.trajectory_folder(name))

    def claim_trajectory(self, name: str, here: dict[str, Any]) -> None:
        """Writes the options of an objective's encoders, or compares them with those that are there."""

        def claim() -> None:
            there = self.trajectory_options(name)
            differing = [] if there is None else differing_options(there, here)
            if differing and not self.overwrite:
                raise UserError(
                    f"The encoders of {name!r} in {self.path} were trained with other options:\n{told(differing)}"
                    "Give another --workdir, or --overwrite to delete these encoders and train anew."
                )
            if differing:
                self._remove(self.trajectory_folder(name))
                self._keep_lines(lambda line: line.get("objective") != name)
            write_text(self.trajectory_folder(name) / "options.json", json.dumps(here, indent=2) + "\n")

        hosts.by_process_0(claim, f"the encoders in {self.path}")

    def need_space(self, needed: int) -> None:
        """Refuses to start what could not be finished: `needed` bytes of checkpoints are still to come."""
        free = shutil.disk_usage(self.path).free
        if not hosts.agree(free >= needed):
            raise UserError(
                f"The run needs about {needed / 2**20:.0f} MiB for its checkpoints, but {self.path} has "
                f"{free / 2**20:.0f} MiB free. Make room, or give a --workdir on another disk."
            )

    def _clear(self) -> None:
        """--overwrite: removes what a run writes, and nothing else."""
        for name in ("checkpoints", "scores", "figures", "studies", "profile", "tensorboard", "wandb"):
            self._remove(self.path / name)
        # config.json last: while it is there, the folder is still the other run's
        reports = (f"report.{kind}" for kind in ("html", "md", "csv", "tex"))
        for name in ("results.json", "metrics.jsonl", *reports, "per_class.csv", "config.json"):
            (self.path / name).unlink(missing_ok=True)

    def _remove(self, folder: Path) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
        except OSError as error:  # what stayed would be taken for the new run's
            raise UserError(
                f"--overwrite cannot remove {error.filename or folder}: {error.strerror}. Remove the folder yourself, "
                "or give another --workdir."
            ) from None


def trained_options(folder: Path) -> dict[str, Any] | None:
    """The options in a trajectory's folder; None if there are no encoders in it."""
    if not any(folder.glob("*.manifest.json")):
        return None
    try:
        return json.loads((folder / "options.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds checkpoints, but its options.json cannot be read ({error}): nobody can tell what they "
            "were trained with. Remove the folder, or give another --workdir."
        ) from None


def read_lines(path: Path, objective: str | None = None) -> list[dict[str, Any]]:
    """Of metrics.jsonl."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # the last line of a run that was killed while writing it
            found.append(json.loads(text))
    return [line for line in found if objective in (None, line.get("objective"))]
