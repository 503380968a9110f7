"""Runs one task's steps: feeds in, log lines out, a snapshot at the end. Stops on the first non-finite term."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rose_jax.data.pipeline import Pipeline
from rose_jax.errors import UserError
from rose_jax.train.schedule import learning_rate, task_schedule
from rose_jax.train.step import TrainState
from rose_jax.types import Snapshot, Task


def make_task(pipeline: Pipeline, task: int) -> Task:
    schedule = task_schedule(pipeline.config.train, task)
    scenario = pipeline.scenario
    values = (np.int32(task), np.int32(scenario.offset(task)), np.int32(scenario.sizes[task]))
    return pipeline.layout.replicate(Task(*values, np.float32(schedule.weight_decay)))


def train_steps(
    step: Callable,
    state: TrainState,
    prev: Snapshot | None,
    pipeline: Pipeline,
    index: int,
    *,
    log: Callable[[dict[str, Any]], None],
    window: "Window | None" = None,
    after_call: Callable[[TrainState, int, "Window"], None] = lambda state, step, window: None,
) -> TrainState:
    """From the state's own step to the end of task `index`.

    `after_call` may checkpoint; with the state it must keep the window's sums, for a resumed run to write the
    same lines.
    """
    config = pipeline.config.train
    first, last = int(state.step), total_steps(pipeline, index)
    task, data = make_task(pipeline, index), pipeline.resident("train")
    window = window or Window(first=first)
    done = first
    for feed, count in pipeline.feeds(
        index, first, last, lambda epoch: learning_rate(config, pipeline.scenario, index, epoch)
    ):
        state, terms = step(state, prev, data, feed, task)
        done += count
        window.add(done, terms)
        # Terms are fetched in windows, so that the device never waits for the host in between.
        if done // config.log_every > (done - count) // config.log_every or done == last:
            means, seconds = window.close(index)
            images = config.batch_size * (done - window.first)
            log(
                {
                    "kind": "train",
                    "task": index,
                    "step": done,
                    "steps": last,
                    "epoch": (done - 1) // pipeline.steps_per_epoch(index),
                    "lr": float(np.asarray(feed.lr)[count - 1]),
                    "images": images,
                    "seconds": round(seconds, 3),
                    **means,
                }
            )
            window = Window(first=done)
        after_call(state, done, window)
    return state


class Window:
    """Sums of the terms since the last log line."""

    def __init__(self, first: int = 0, sums: dict[str, float] | None = None, calls: int = 0, seconds: float = 0.0):
        self.first, self.sums, self.calls = first, sums or {}, calls
        self._begun = time.perf_counter() - seconds
        self._pending: list[tuple[int, dict[str, jax.Array]]] = []

    def add(self, step: int, terms: dict[str, jax.Array]) -> None:
        self._pending.append((step, terms))

    def fetch(self, task: int) -> dict[str, Any]:
        """Brings pending terms to the host, once every one of them is known to be finite."""
        for (step, _), terms in zip(self._pending, jax.device_get([t for _, t in self._pending]), strict=True):
            bad = [name for name, value in terms.items() if not np.isfinite(value)]
            if bad:
                raise UserError(
                    f"Training stopped: {', '.join(bad)} not finite at or just before step {step} of task {task}. The snapshots "
                    "of earlier tasks are kept. Lower the learning rate (config.train.*.lr) or look at the data."
                )
            self.sums = {name: self.sums.get(name, 0.0) + float(value) for name, value in terms.items()}
            self.calls += 1
        self._pending = []
        seconds = time.perf_counter() - self._begun
        return {"first": self.first, "sums": self.sums, "calls": self.calls, "seconds": seconds}

    def close(self, task: int) -> tuple[dict[str, float], float]:
        """Means over the window and its seconds."""
        seconds = self.fetch(task)["seconds"]
        return {name: value / self.calls for name, value in self.sums.items()}, seconds


def total_steps(pipeline: Pipeline, task: int) -> int:
    return task_schedule(pipeline.config.train, task).epochs * pipeline.steps_per_epoch(task)
