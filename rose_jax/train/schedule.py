"""Learning rates: a multi-step decay within a task, scaled down by how little of the world the task is."""

import dataclasses

from rose_jax.config import Recipe, Schedule, TrainOptions
from rose_jax.data.scenario import Scenario


def follow(recipe: Recipe, train: TrainOptions) -> TrainOptions:
    """`train` with a method's own batch size and schedules, whose learning rates are not adapted to the task."""
    return dataclasses.replace(
        train, batch_size=recipe.batch_size, first=recipe.first, later=recipe.later, adapt_lr=False
    )


def task_schedule(config: TrainOptions, task: int) -> Schedule:
    return config.first if task == 0 else config.later


def learning_rate(config: TrainOptions, scenario: Scenario, task: int, epoch: int) -> float:
    """lr x 0.1 per milestone passed; from the second task on also lr_adapt = lr |C_t| / |C_1:t-1|."""
    schedule = task_schedule(config, task)
    lr = schedule.lr * 0.1 ** sum(epoch >= milestone for milestone in schedule.milestones)
    if task > 0 and config.adapt_lr:
        lr *= scenario.sizes[task] / scenario.offset(task)
    return lr
