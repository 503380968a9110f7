"""A trajectory: the encoders that one objective trains, task after task, each left behind as a snapshot."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rose_jax.data.pipeline import Pipeline
from rose_jax.errors import UserError
from rose_jax.run.space import checkpoint_bytes
from rose_jax.run.stage import Stage
from rose_jax.runtime import hosts
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.workdir import Workdir
from rose_jax.train.loop import Window, make_task, total_steps, train_steps
from rose_jax.train.step import TrainState, make_begin, make_step
from rose_jax.types import ClassMemory, Objective, Snapshot

KEEP_IN_TASK = 2  # the newest may turn out damaged


class Trajectory(Sequence):
    """Trains what is missing and reads what is there; indexing gives the snapshot of a task."""

    def __init__(self, name: str, objective: Objective, pipeline: Pipeline, work: Workdir):
        self.name, self.objective, self.work = name, objective, work
        self.pipeline = pipeline.with_schedule(objective.train)
        self.checkpoints = Checkpoints(work.path / "checkpoints" / name)
        self.begin = make_begin(objective, pipeline.config.seed)
        self.step = make_step(objective, pipeline.layout, pipeline.config.seed)
        self._loaded: dict[int, Snapshot] = {}  # least recently used first
        self._whole: dict[int, bool] = {}  # whether a task's snapshot is there and has been verified

    def __len__(self) -> int:
        return self.pipeline.scenario.num_tasks

    def __getitem__(self, task):
        if task in self._loaded:
            self._loaded[task] = self._loaded.pop(task)  # the newest in use
        else:
            name = _stage_name(task)
            if not hosts.agree(self.checkpoints.usable(name)):
                raise UserError(
                    f"There is no usable snapshot of task {task} in {self.checkpoints.folder}. "
                    "The command that made the run trains it anew."
                )
            self._remember(task, _from_dict(self.checkpoints.restore(name, self.pipeline.layout.replicated)))
        return self._loaded[task]

    def has(self, task: int) -> bool:
        """Whether the task is trained; a damaged snapshot is named in a warning."""
        if task not in self._whole:
            self._whole[task] = hosts.agree(self.checkpoints.usable(_stage_name(task)))
        return self._whole[task]

    def bytes_to_come(self) -> int:
        """What is still to be written: a snapshot per task, and the checkpoints inside one, one of them on its way."""
        missing = [task for task in range(len(self)) if not self.has(task)]
        if not missing:
            return 0
        sizes = checkpoint_bytes(self.objective, self.begin, self.pipeline)
        to_come = len(missing) * sizes.snapshot + (KEEP_IN_TASK + 1) * max(sizes.states[task] for task in missing)
        # Those of an interrupted run give way to new ones, so that what was begun may be finished.
        old = (file for file in self.checkpoints.folder.glob("task_*/**/*") if file.is_file())
        return max(to_come - sum(file.stat().st_size for file in old), 0)

    def train(self, task: int) -> float:
        """Trains task `task` unless its snapshot is there; returns seconds of training done now."""
        if self.has(task):
            self.checkpoints.remove_all(_step_prefix(task))  # a kill may have left some
            return 0.0
        begun = time.perf_counter()
        pipeline, prev = self.pipeline, self[task - 1] if task else None
        state, window = self._resume(self.begin(prev, make_task(pipeline, task)), task)
        saved = int(state.step)
        self.work.truncate(self.name, task, saved)
        every = pipeline.config.train.checkpoint_every or pipeline.steps_per_epoch(task)
        last = total_steps(pipeline, task)
        after = sum(total_steps(pipeline, later) for later in range(task + 1, len(self)))
        self.work.progress.task(task, len(self), last, first=saved, steps_after=after, label=self.name)
        state = train_steps(
            self.step,
            state,
            prev,
            pipeline,
            task,
            log=self.work.logger(self.name),
            window=window,
            after_call=self.after_call(task, saved, every, last),
        )
        view = Stage(pipeline, task, self, np.empty(0, int))
        snapshot = self.objective.finish(state.trainable, state.batch_stats, prev, view, make_task(pipeline, task))
        # Part of it each host has computed for itself, and CPUs of two kinds round differently.
        self._remember(task, pipeline.layout.replicate(hosts.share(snapshot)))
        self.checkpoints.save(_stage_name(task), _to_dict(self._loaded[task]))
        self.checkpoints.wait()
        hosts.barrier(f"stage {task} saved")
        self._whole[task] = True
        self.checkpoints.remove_all(_step_prefix(task))
        return time.perf_counter() - begun

    def after_call(self, task: int, first: int, every: int, last: int) -> Callable:
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
                raise hosts.Preempted(f"stopped at step {done} of task {task}")

        return act

    def close(self) -> None:
        self.checkpoints.close()

    def _resume(self, state: TrainState, task: int) -> tuple[TrainState, Window]:
        """The newest checkpoint inside the task that is whole, else the task's start."""
        state, checkpoints = self.pipeline.layout.replicate(state), self.checkpoints
        prefix = _step_prefix(task)
        usable = (name for name in reversed(checkpoints.attempts(prefix)) if checkpoints.usable(name))
        step = hosts.agree_on_number(int(next(usable, "_-1").rsplit("_", 1)[1]))
        # What is newer is damaged or half written, and would confuse the pruning.
        checkpoints.remove_all(prefix, newer_than=step)
        if step < 0:
            return state, Window()
        name = _step_name(task, step)
        restored = checkpoints.restore(name, self.pipeline.layout.replicated, like=state)
        return restored, Window(**checkpoints.note(name))

    def _remember(self, task: int, snapshot: Snapshot) -> None:
        self._loaded[task] = snapshot
        while len(self._loaded) > 3:  # two encoders and the one before are all a stage needs
            del self._loaded[next(iter(self._loaded))]


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
