"""Learning rates: a multi-step decay within a task, in RoSE's recipe scaled down in later tasks."""

import dataclasses

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
    """lr x 0.1 per milestone passed; from the second task on also lr_adapt = lr |C_t| / |C_1:t-1|."""
    schedule = task_schedule(train, task)
    lr = schedule.lr * 0.1 ** sum(epoch >= milestone for milestone in schedule.milestones)
    if task > 0 and train.adapt_lr:
        lr *= scenario.sizes[task] / scenario.offset(task)
    return lr
