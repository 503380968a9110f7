"""Learning rates: a decay within a task, by steps or along a cosine; in RoSE's recipe scaled down in later tasks."""

import dataclasses
import math

from rose_jax.config import Recipe, Schedule, TrainOptions
from rose_jax.types import TaskSplit


def follow(recipe: Recipe, train: TrainOptions) -> TrainOptions:
    """`train` with a method's own batch size and schedules, whose learning rates are not adapted to the task."""
    return dataclasses.replace(
        train, batch_size=recipe.batch_size, first=recipe.first, later=recipe.later, adapt_lr=False
    )


def task_schedule(train: TrainOptions, task: int) -> Schedule:
    return train.first if task == 0 else train.later


def learning_rate(train: TrainOptions, scenario: TaskSplit, task: int, epoch: int) -> float:
    """The schedule's; from the second task on also lr_adapt = lr |C_t| / |C_1:t-1|."""
    lr = decayed(task_schedule(train, task), epoch)
    if task > 0 and train.adapt_lr:
        lr *= scenario.sizes[task] / scenario.offset(task)
    return lr


def decayed(schedule: Schedule, epoch: int) -> float:
    """lr x 0.1 per milestone passed, or torch's CosineAnnealingLR: lr (1 + cos(pi epoch / epochs)) / 2."""
    if schedule.decay == "cosine":
        return schedule.lr * (1 + math.cos(math.pi * epoch / schedule.epochs)) / 2
    return schedule.lr * 0.1 ** sum(epoch >= milestone for milestone in schedule.milestones)
