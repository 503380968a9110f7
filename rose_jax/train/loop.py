"""Runs one task's steps: feeds in, log lines out. Stops on the first term that is not finite."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from rose_jax.data.pipeline import Feed, Images, TrainingBatches
from rose_jax.errors import UserError
from rose_jax.runtime.sharding import Layout
from rose_jax.train.schedule import learning_rate, task_schedule
from rose_jax.train.step import TrainState
from rose_jax.types import Snapshot, Task


def make_task(images: Images, weight_decay: float, task: int, layout: Layout | None = None) -> Task:
    """layout: where it lies, if not with the images."""
    scenario = images.scenario
    numbers = np.array([task, scenario.offset(task), scenario.sizes[task]], np.int32)
    return Task(*(layout or images.layout).replicate((*numbers, np.float32(weight_decay), np.uint32(images.seed))))


def train_steps(
    step: Callable[..., tuple[TrainState, dict[str, jax.Array]]],
    state: TrainState,
    prev: Snapshot | None,
    batches: TrainingBatches,
    task: Task,
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
    options, per_epoch = batches.options, batches.steps_per_epoch(index)
    first, last = int(state.step), total_steps(batches, index)
    window = window or Window(first=first)
    for steps, lr, arguments in calls(batches, index, first, last):
        state, terms = step(state, prev, *arguments, task)
        done = steps.stop
        window.add(done, terms)
        # Terms are fetched in windows, so that the device never waits for the host in between.
        if done // options.log_every > steps.start // options.log_every or done == last:
            means, seconds = window.close(index)
            log(
                {
                    "kind": "train",
                    "task": index,
                    "step": done,
                    "steps": last,
                    "epoch": (done - 1) // per_epoch,
                    "lr": float(lr[len(steps) - 1]),
                    "images": options.batch_size * (done - window.first),
                    "seconds": round(seconds, 3),
                    **means,
                }
            )
            window = Window(first=done)
        after_call(state, done, window)
    return state


def calls(
    batches: TrainingBatches, index: int, first: int, last: int
) -> Iterator[tuple[range, np.ndarray, tuple[dict[str, jax.Array] | None, Feed, jax.Array]]]:
    """For each call of the step: which steps it runs, their learning rates [K], and its arguments (data, feed, lr)."""
    options, images = batches.options, batches.images
    data, per_epoch = images.resident("train"), batches.steps_per_epoch(index)
    for feed, steps in batches.feeds(index, first, last):
        lr = np.zeros(options.steps_per_call if data else 1, np.float32)
        for row, number in enumerate(steps):
            lr[row] = learning_rate(options, images.scenario, index, number // per_epoch)
        yield steps, lr, (data, feed, images.layout.replicate(lr))


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
                    f"Training stopped: {', '.join(bad)} not finite at or just before step {step} of task "
                    f"{task + 1}. The snapshots of earlier tasks are kept. Lower the learning rate (config.train.*.lr) or "
                    "look at the data."
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


def total_steps(batches: TrainingBatches, task: int) -> int:
    return task_schedule(batches.options, task).epochs * batches.steps_per_epoch(task)
