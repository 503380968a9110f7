"""A trajectory: the encoders that one objective trains, task after task, each left behind as a snapshot."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rose_jax.config import get
from rose_jax.data.pipeline import TrainingBatches
from rose_jax.errors import UserError, unknown
from rose_jax.run.features import Features
from rose_jax.run.identity import digest_of, trajectory_options, tree_digest
from rose_jax.run.stage import Stage
from rose_jax.runtime import hosts
from rose_jax.runtime.checkpoint import Checkpoints, committed, read_note
from rose_jax.runtime.memory import must_fit
from rose_jax.runtime.programs import STEP_MINUTES, Programs
from rose_jax.runtime.workdir import Workdir
from rose_jax.train.loop import Window, make_task, total_steps, train_steps
from rose_jax.train.objectives import OBJECTIVES, make_objective
from rose_jax.train.schedule import task_schedule
from rose_jax.train.step import TrainState, make_begin, make_step
from rose_jax.types import ClassMemory, Parts, PyTree, Snapshot, Task

KEEP_IN_TASK = 2  # the newest may turn out damaged


class Trajectory(Sequence[Snapshot]):
    """Trains what is missing and reads what is there; indexing gives the snapshot of a task."""

    def __init__(
        self,
        name: str,
        parts: Parts,
        features: Features,
        work: Workdir,
        siblings: Mapping[str, "Trajectory"] | None = None,
        tasks: int = 0,
    ):
        """siblings: all that the run has open, by name; tasks: how many are to be trained, 0 is all."""
        self.name, self.parts, self.features, self.work = name, parts, features, work
        self.images, self.layout = features.images, features.images.layout
        self._siblings = {} if siblings is None else siblings
        self._tasks = tasks or self.images.scenario.num_tasks
        work.claim_trajectory(name, trajectory_options(parts.config, name))
        self.objective = make_objective(name, parts)
        # Whose first task this one takes over; "" if it trains its own.
        self.first_from = OBJECTIVES[name].first_from if self.objective.adopt is not None else ""
        self.options = self.objective.train or parts.config.train
        self.batches = TrainingBatches(self.images, self.options)
        self.checkpoints = Checkpoints(work.trajectory_folder(name))
        self.begin = make_begin(self.objective)
        self.step = make_step(self.objective, self.layout)
        # One for the first task, one for all later ones.
        self.programs = Programs(f"the training step of {name}", STEP_MINUTES, convolves=True)
        self._loaded: dict[int, Snapshot] = {}  # least recently used first
        self._whole: dict[int, bool] = {}  # whether a task's snapshot is there and has been verified
        if work.share:
            hosts.by_process_0(self._take_from_siblings, f"encoders for {work.path}")

    def __len__(self) -> int:
        return self._tasks

    def __getitem__(self, task: Any) -> Any:
        if task in self._loaded:
            self._loaded[task] = self._loaded.pop(task)  # the newest in use
        else:
            name = _stage_name(task)
            if not hosts.agree(self.checkpoints.usable(name)):
                raise UserError(
                    f"There is no usable snapshot of task {task + 1} in {self.checkpoints.folder}. "
                    "The command that made the run trains it anew."
                )
            self._remember(task, _from_dict(self.checkpoints.restore(name, self.layout.replicated)))
        return self._loaded[task]

    def has(self, task: int) -> bool:
        """Whether the task is trained; a damaged snapshot is named in a warning."""
        if task not in self._whole:
            self._whole[task] = hosts.agree(self.checkpoints.usable(_stage_name(task)))
        return self._whole[task]

    def digest(self, task: int) -> str:
        """Of the snapshots 0..task: what was computed from them is named by it."""
        return snapshots_digest(self.checkpoints.folder, task + 1)

    def view(self, task: int, stream: np.ndarray | None = None, pause: Callable[[], None] = lambda: None) -> Stage:
        """stream: indices of test images; None if nothing is to be streamed."""
        chosen = np.empty(0, int) if stream is None else stream
        return Stage(self.features, task, self, chosen, self.options.batch_size, pause)

    def bytes_to_come(self) -> int:
        """What is still to be written: a snapshot per task, and the checkpoints inside one, one of them on its way.

        How large a snapshot is only the first one tells: what an objective puts into it is known when it ends a task.
        """
        missing = [task for task in range(len(self)) if not self.has(task)]
        if not missing:
            return 0
        state = jax.eval_shape(self.begin, None, self._task(0))
        first = self.checkpoints.folder / _stage_name(0)
        snapshot = _folder_size(first) if self.has(0) else _size((state.trainable, state.kept))
        to_come = len(missing) * snapshot + (KEEP_IN_TASK + 1) * _size(state)
        # Those of an interrupted run give way to new ones, so that what was begun may be finished.
        old = sum(_folder_size(folder) for folder in self.checkpoints.folder.glob("task_*"))
        elsewhere = 0
        if self.first_from and 0 in missing and self.first_from not in self._siblings:  # a sibling counts its own
            with self._source() as source:
                elsewhere = source.bytes_to_come()
        return max(to_come - old, 0) + elsewhere

    def train(self, task: int) -> float:
        """Trains task `task` unless its snapshot is there; returns seconds of training done now."""
        if self.has(task):
            self.checkpoints.remove_all(_step_prefix(task))  # a kill may have left some
            return 0.0
        if task == 0 and self.first_from:
            return self._take_over()
        begun = time.perf_counter()
        prev, traced = self[task - 1] if task else None, self._task(task)
        state, window = self._resume(self.begin(prev, traced), task)
        saved = int(state.step)
        self.work.truncate(self.name, task, saved)
        every = self.options.checkpoint_every or self.batches.steps_per_epoch(task)
        last = total_steps(self.batches, task)
        after = sum(total_steps(self.batches, later) for later in range(task + 1, len(self)))
        self.work.progress.task(task, len(self), last, first=saved, steps_after=after, label=self.name)
        with must_fit(f"A training step of {self.name!r}", self._batch_size_keys()):
            state = train_steps(
                self._run_step,
                state,
                prev,
                self.batches,
                traced,
                task,
                log=self.work.logger(self.name),
                window=window,
                after_call=self.after_call(task, saved, every, last),
            )
        self._keep(task, self.objective.finish(state.trainable, state.kept, prev, self.view(task), traced))
        return time.perf_counter() - begun

    def _take_over(self) -> float:
        """Task 0 is another objective's: trained there unless it is there already, and kept here as one's own."""
        assert self.objective.adopt is not None
        with self._source() as source:
            seconds = source.train(0)
            self._keep(0, self.objective.adopt(source[0]))
        return seconds

    def _take_from_siblings(self) -> None:
        """Encoders that a run beside this one has trained with the same options are not trained again."""
        for run in self.work.siblings.with_encoders(self.name, trajectory_options(self.parts.config, self.name)):
            ours, theirs, taken = self.checkpoints.folder, run / "checkpoints" / self.name, []
            for task in range(len(self)):
                if committed(ours, _stage_name(task)):
                    continue
                # A task continues the very bits before it, which another kind of machine would have rounded otherwise.
                alike = snapshots_digest(ours, task) == snapshots_digest(theirs, task) != ""
                if not alike or not committed(theirs, _stage_name(task)):
                    break
                self.work.take_lines(run, self.name, task)
                if not self.checkpoints.take(_stage_name(task), theirs):
                    break
                taken.append(str(task + 1))
            if taken:
                which = f"task {taken[0]} was" if len(taken) == 1 else f"tasks {taken[0]} to {taken[-1]} were"
                logging.info(
                    "%s: %s trained in %s with the same options; taken from there.", self.name, which, run.name
                )

    @contextlib.contextmanager
    def _source(self) -> Iterator["Trajectory"]:
        """The trajectory whose first task is taken over: the run's own, else one that is opened for that task alone."""
        name = self.first_from
        if name in self._siblings:
            yield self._siblings[name]
            return
        if name not in OBJECTIVES:
            raise unknown(f"objective whose first task {self.name!r} takes over", name, OBJECTIVES)
        opened = Trajectory(name, self.parts, self.features, self.work, self._siblings, tasks=1)
        with contextlib.closing(opened) as source:
            yield source

    def _keep(self, task: int, snapshot: Snapshot) -> None:
        """Saves what a task leaves behind; checkpoints inside the task are no longer needed."""
        # Process 0's copy: part of it each host has computed for itself, and CPUs of two kinds round differently.
        self._remember(task, self.layout.replicate(hosts.share(snapshot)))
        saved_tree = _to_dict(self._loaded[task])
        self.checkpoints.save(_stage_name(task), saved_tree, note={"digest": tree_digest(saved_tree)})
        self.checkpoints.wait()
        hosts.barrier(f"stage {task} saved")
        self._whole[task] = True
        self.checkpoints.remove_all(_step_prefix(task))
        if task == 0:
            self.work.need_space(self.bytes_to_come())

    def _task(self, task: int) -> Task:
        return make_task(self.images, task_schedule(self.options, task).weight_decay, task)

    def _run_step(self, state: TrainState, prev: Snapshot | None, *args: Any) -> tuple[TrainState, dict[str, Any]]:
        name = "first task" if prev is None else "later tasks"
        return self.programs.compiled(name, self.step, state, prev, *args)(state, prev, *args)

    def _batch_size_keys(self) -> str:
        """The options that the batch size came from, with its value."""
        options = trajectory_options(self.parts.config, self.name)
        named = [f"config.{key}" for key in options if key.endswith("batch_size")]
        own = [key for key in named if get(self.parts.config, key[7:]) == self.options.batch_size]
        return f"{' or '.join(own or named)} (now {self.options.batch_size})"

    def after_call(
        self, task: int, first: int, every: int, last: int
    ) -> Callable[[TrainState, int, Window], None]:
        """What happens between two calls of the step: profiling, a checkpoint now and then, a preemption notice."""
        saved = first

        def act(state: TrainState, done: int, window: Window) -> None:
            nonlocal saved
            self.work.profiler.after_step(done, state)
            preempted = self.work.preemption.asked()
            if done == last:  # the snapshot comes next
                return
            # One that is due while the last is still being written comes a little later: training does not wait.
            if preempted or (done - saved >= every and not hosts.agree(self.checkpoints.busy())):
                note = window.fetch(task)
                self.checkpoints.save(_step_name(task, done), state, note=note, keep=KEEP_IN_TASK)
                saved = done
            if preempted:
                self.checkpoints.wait()
                hosts.barrier("preempted")  # nobody leaves before the manifest is written
                self.work.preemption.stop(f"stopped at step {done} of task {task + 1}")

        return act

    def close(self) -> None:
        self.checkpoints.close()

    def _resume(self, state: TrainState, task: int) -> tuple[TrainState, Window]:
        """The newest checkpoint inside the task that is whole, else the task's start."""
        state, checkpoints = self.layout.replicate(state), self.checkpoints
        prefix = _step_prefix(task)
        usable = (name for name in reversed(checkpoints.attempts(prefix)) if checkpoints.usable(name))
        step = hosts.agree_on_number(int(next(usable, "_-1").rsplit("_", 1)[1]))
        # What is newer is damaged or half written, and would confuse the pruning.
        checkpoints.remove_all(prefix, newer_than=step)
        if step < 0:
            return state, Window()
        name = _step_name(task, step)
        restored = checkpoints.restore(name, self.layout.replicated, like=state)
        return restored, Window(**checkpoints.note(name))

    def _remember(self, task: int, snapshot: Snapshot) -> None:
        self._loaded[task] = snapshot
        while len(self._loaded) > 3:  # two encoders and the one before are all a stage needs
            del self._loaded[next(iter(self._loaded))]


class SavedSnapshots(Sequence[Snapshot]):
    """The snapshots in a trajectory's folder, for readers: nothing there is locked, claimed or changed."""

    def __init__(self, folder: Path, tasks: int, placement: Any):
        self.folder, self._tasks, self._placement = folder, tasks, placement
        self._loaded: dict[int, Snapshot] = {}

    def __len__(self) -> int:
        return self._tasks

    def __getitem__(self, task: Any) -> Any:
        if task not in self._loaded:
            with contextlib.closing(Checkpoints(self.folder, read_only=True)) as checkpoints:
                name = _stage_name(task)
                if not checkpoints.usable(name):
                    raise UserError(f"There is no usable snapshot of task {task + 1} in {self.folder}.")
                self._loaded[task] = _from_dict(checkpoints.restore(name, self._placement))
        return self._loaded[task]


def snapshots_digest(folder: Path, tasks: int) -> str:
    """Of the first so many snapshots in a trajectory's folder, without reading them; "" if one is missing."""
    try:
        return digest_of(read_note(folder, _stage_name(task))["digest"] for task in range(tasks))
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _stage_name(task: int) -> str:
    return f"stage_{task:03d}"


def _step_prefix(task: int) -> str:
    return f"task_{task:03d}_step"


def _step_name(task: int, step: int) -> str:
    return f"{_step_prefix(task)}_{step:08d}"


def _to_dict(snapshot: Snapshot) -> dict[str, Any]:
    return snapshot._asdict() | {"memory": snapshot.memory._asdict()}


def _from_dict(saved: dict[str, Any]) -> Snapshot:
    return Snapshot(**saved | {"memory": ClassMemory(**saved["memory"])})


def _size(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
