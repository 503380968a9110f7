"""The demo: scikit-learn's scanned digits, 5 tasks of 2 classes, three convolutions (d = 64), no download.

Command:   python -m rose_jax.main --config configs/digits_cold5.py
Hardware:  2 CPU cores
How it was chosen, and what it shows: docs/digits.md.
"""

from rose_jax.config import Config, Recipe, Schedule
from rose_jax.errors import unknown


def get_config(arg: str = "") -> Config:
    """The paper's cold start with 0.3 of its epochs, and every other method with 0.3 of its authors'."""
    if arg:
        raise unknown("preset", arg, ("none: the digits run is small as it is",))
    config = Config(name="digits_cold5")
    config.methods = ("base", "projector", "gd", "rose", "rose_whitened")
    config.data.dataset, config.data.normalisation = "digits", "digits"
    config.data.augment, config.data.pad = "shift", 2
    config.scenario.tasks = 5
    # At 8 x 8 pixels the last two blocks of a ResNet-18 would see 2 x 2 and 1 x 1.
    config.model.encoder, config.model.width = "tiny", 8
    config.train.batch_size = 64
    config.train.first = Schedule(60, 0.1, (18, 36, 54), 5e-4)
    config.train.later = Schedule(30, 0.05, (14, 27), 2e-4)
    config.efc.recipe = Recipe(64, _adam(), Schedule(30, 2e-3, (), 2e-4))  # 4 steps an epoch: 1e-4 would not move
    for options in (config.fcs, config.pass_, config.il2a):
        options.recipe = Recipe(32, _adam(), _adam())
    config.frozen.recipe.batch_size, config.frozen.recipe.first.epochs = 64, 60
    config.ssre.recipe = Recipe(64, _adam(), Schedule(18, 2e-3, (14,), 5e-4))
    config.ldc.epochs, config.ldc.lr = 40, 5e-3  # an epoch has 5 steps, and it starts from a random matrix
    config.dpcr.gamma = 60.0  # 200 in proportion to the images of a class: 145 instead of CIFAR-100's 500
    config.evolution.capacity = 100  # of 359 test images: as much of the last stream as 3000 of CIFAR-100's 10,000
    config.testtime.batch_size = 40  # of 360 test images in all: 200 would be two steps
    config.ttt.augment = "shift"  # a mirrored digit is no digit
    config.test.batch_size, config.test.batches_per_call = 32, 1
    return config


def _adam() -> Schedule:
    return Schedule(30, 1e-3, (14, 27), 2e-4)
