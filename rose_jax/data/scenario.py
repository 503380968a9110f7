"""Which classes come when: class order, task splits, and the images of each task and test stage."""

import logging
from dataclasses import dataclass

import numpy as np

from rose_jax.config import ScenarioOptions
from rose_jax.data.order import stream_order
from rose_jax.errors import UserError


@dataclass(frozen=True)
class Scenario:
    """Internal labels 0..C-1 follow the class order, so task t owns a contiguous range of them."""

    class_order: np.ndarray  # [C] original label of internal label i
    sizes: tuple[int, ...]  # classes of each task
    images_per_class: int = 0  # of each split; 0 is all

    @property
    def num_classes(self) -> int:
        return len(self.class_order)

    @property
    def equal(self) -> bool:
        """Whether all tasks, or all but the first, have as many classes."""
        return len(set(self.sizes[1:])) <= 1

    @property
    def num_tasks(self) -> int:
        return len(self.sizes)

    def offset(self, task: int) -> int:
        return sum(self.sizes[:task])

    def seen(self, task: int) -> int:
        return sum(self.sizes[: task + 1])

    def classes(self, task: int) -> range:
        return range(self.offset(task), self.seen(task))

    def task_of_class(self) -> np.ndarray:
        """[C] the task that brings each internal label."""
        return np.repeat(np.arange(self.num_tasks), self.sizes)

    def internal(self, labels: np.ndarray) -> np.ndarray:
        """Original labels -> internal ones."""
        rank = np.empty(self.num_classes, np.int32)
        rank[self.class_order] = np.arange(self.num_classes, dtype=np.int32)
        return rank[labels]

    def train_indices(self, labels: np.ndarray, task: int) -> np.ndarray:
        """Images of D_t, in file order; `labels` are internal."""
        return self._some(labels, np.flatnonzero((labels >= self.offset(task)) & (labels < self.seen(task))))

    def stream_indices(self, labels: np.ndarray, task: int, seed: int) -> np.ndarray:
        """The test stream of stage t: the shuffled test images of all classes seen so far."""
        seen = self._some(labels, np.flatnonzero(labels < self.seen(task)))
        return seen[stream_order(seed, task, len(seen))]

    def _some(self, labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The first images of each class, if there is a limit."""
        if not self.images_per_class:
            return rows
        kept = [rows[labels[rows] == c][: self.images_per_class] for c in np.unique(labels[rows])]
        return np.sort(np.concatenate(kept))


def make_scenario(config: ScenarioOptions, num_classes: int, images_per_class: int = 0) -> Scenario:
    order = _class_order(config, num_classes)
    sizes = tuple(config.task_sizes) or _task_sizes(config, num_classes)
    if sum(sizes) != num_classes or min(sizes) < 1:
        raise UserError(
            f"The split {list(sizes)} (config.scenario.task_sizes) has {sum(sizes)} classes, but the data set "
            f"has {num_classes}; the sizes must be positive and add up."
        )
    return Scenario(order, sizes, images_per_class)


def _class_order(config: ScenarioOptions, num_classes: int) -> np.ndarray:
    if not config.class_order:
        return np.random.RandomState(config.class_order_seed).permutation(num_classes)
    order = np.asarray(config.class_order)
    if sorted(order.tolist()) != list(range(num_classes)):
        raise UserError(
            f"config.scenario.class_order must hold each of 0..{num_classes - 1} once; "
            f"it has {len(order)} entries, {len(set(order.tolist()))} of them different."
        )
    return order


def _task_sizes(config: ScenarioOptions, num_classes: int) -> tuple[int, ...]:
    """Cold T: T equal tasks. Warm T: a first task (half of the classes unless told), then T equal ones.

    If the classes do not divide into T, the last tasks have one class fewer than the others.
    """
    first = (config.first_classes or num_classes // 2) if config.start == "warm" else 0
    rest = num_classes - first
    before, also = (f"a first task of {first} and ", " or first_classes") if first else ("", "")
    if rest < config.tasks:
        raise UserError(
            f"{num_classes} classes do not split into {before}{config.tasks} tasks of one class or more. Choose "
            f"config.scenario.tasks{also} so that they do, or give config.scenario.task_sizes."
        )
    size, larger = divmod(rest, config.tasks)
    sizes = (size + 1,) * larger + (size,) * (config.tasks - larger)
    if larger:
        logging.warning(
            "%d classes do not divide into %s%d tasks: these have %s classes.",
            num_classes,
            before,
            config.tasks,
            ", ".join(map(str, sizes)),
        )
    return ((first,) if first else ()) + sizes
