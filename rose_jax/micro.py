"""The `:micro` preset: real CIFAR-100 at 16 x 16 and width 16, with as many steps as each method needs.

Two CPU cores train a plain trajectory in 5 minutes (older ones in 15), one with rotations and mixtures in 20 (45).
A schedule is cut by steps, not by epochs, and one rule keeps methods that change slowly what they are: **Adam's rates
are raised so that lr x steps stays what the authors have, up to 1e-3**, the largest that any of them uses. (EFC's later
tasks: 7,800 steps at 1e-4 become 702 at 1e-3, and not 702 at 1e-4, which would learn nothing.) SGD's rates stay, and
so does the authors' batch, where it does not grow inside the step.
"""

import math

from rose_jax.config import Config, Recipe, Schedule, TrainOptions
from rose_jax.errors import UserError

IMAGES_PER_CLASS = 500  # of CIFAR-100's training split
CLASSES = 100
PLAIN_IMAGES = 640_000  # of a whole trajectory, over all its tasks: 5,000 steps of 128, 10,000 of 64
REHEARSED_STEPS = 30_000  # PASS, IL2A and FCS weigh old classes ten to one: it takes thousands to learn new ones
LARGEST_ADAM_RATE = 1e-3

AnyRecipe = TrainOptions | Recipe


def micro(config: Config) -> None:
    if config.data.dataset != "cifar100":
        raise UserError(
            f"The preset :micro is for CIFAR-100's settings, not for {config.data.dataset}: use :thin."
        )
    config.model.width = 16
    config.data.pool = 2
    for section in (config.data, config.frozen, config.efc, config.ssre, config.pass_, config.il2a):
        section.pad = 2  # of pooled pixels: as far as 4 before
    # EFC's own crops take down to 8 % of a padded image, some six of these twenty pixels in a row. With them ten cold tasks
    # end at 18.3 % on the test set, with what all others have here at 24.6 (seed 0; nothing else was tried).
    config.efc.augment = "standard"
    # RoSE's warm start makes twelve images of one, and so would pass over the first task's only three times: after that
    # LwF is at 31.8 %, where the plainly trained `frozen` has 51.8.
    config.loss.expand_labels = config.lwf.expand_labels = False
    plain = (config.train, config.lwf.official, config.efc.recipe, config.frozen.recipe, config.ssre.recipe)
    for recipe in plain:
        cut(config, recipe, PLAIN_IMAGES // recipe.batch_size, recipe.batch_size)
    for recipe in (config.pass_.recipe, config.il2a.recipe):  # an image becomes four or five
        cut(config, recipe, REHEARSED_STEPS, 16)
    cut(config, config.fcs.recipe, REHEARSED_STEPS, 8)  # and here twelve
    # Prototypes are drawn beside a batch, as many as it has images.
    config.efc.prototype_batch = config.efc.recipe.batch_size
    config.fcs.prototype_batch = config.fcs.recipe.batch_size
    config.ssre.prototype_batch = config.ssre.recipe.batch_size


def cut(config: Config, recipe: AnyRecipe, steps: int, batch: int) -> None:
    """Shares `steps` out over the tasks: to a first one of half of the classes a half of them, else a third."""
    first_classes, later_classes, later_tasks = task_sizes(config)
    first = steps // 2 if config.scenario.start == "warm" else steps // 3
    later = (steps - first) // later_tasks
    for schedule, classes, count in ((recipe.first, first_classes, first), (recipe.later, later_classes, later)):
        shorten(schedule, IMAGES_PER_CLASS * classes, recipe.batch_size, batch, count)
    recipe.batch_size = batch


def shorten(schedule: Schedule, images: int, old_batch: int, batch: int, steps: int) -> None:
    """About so many steps with the same shape of decay; a schedule of no epochs stays as it is."""
    if not schedule.epochs:
        return
    authors_steps = schedule.epochs * max(images // old_batch, 1)
    epochs = max(1, round(steps / max(images // batch, 1)))
    moved = sorted({math.ceil(m * epochs / schedule.epochs) for m in schedule.milestones})
    schedule.milestones = tuple(m for m in moved if m < epochs)
    keep_rate_times_steps(schedule, authors_steps / (epochs * max(images // batch, 1)))
    schedule.epochs = epochs


def keep_rate_times_steps(schedule: Schedule, fewer: float) -> None:
    """Adam's rate for a schedule that takes so many times fewer steps than its authors'; SGD's rates stay."""
    if schedule.lr <= LARGEST_ADAM_RATE:
        schedule.lr = min(LARGEST_ADAM_RATE, schedule.lr * max(1.0, fewer))


def task_sizes(config: Config) -> tuple[int, int, int]:
    """Classes of the first task, of each later one, and how many later ones there are."""
    tasks = config.scenario.tasks
    if config.scenario.start == "cold":
        return CLASSES // tasks, CLASSES // tasks, max(tasks - 1, 1)
    first = config.scenario.first_classes or CLASSES // 2
    return first, (CLASSES - first) // tasks, tasks
