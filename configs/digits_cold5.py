"""The demo: scikit-learn's scanned digits, 5 tasks of 2 classes, thin ResNet-18 (width 8), no download.

Command:   python -m rose_jax.main --config configs/digits_cold5.py
Hardware:  2 CPU cores
"""

from rose_jax.config import Config, Recipe, Schedule
from rose_jax.errors import unknown


def get_config(arg: str = "") -> Config:
    if arg:
        raise unknown("preset", arg, ("none: the digits run is small as it is",))
    config = Config(name="digits_cold5")
    config.data.dataset, config.data.normalisation = "digits", "digits"
    config.data.augment, config.data.pad = "shift", 2
    config.scenario.tasks = 5
    config.model.width = 8
    config.train.batch_size = 64
    config.train.first = Schedule(30, 0.1, (15, 25), 5e-4)
    config.train.later = Schedule(20, 0.05, (10, 16), 2e-4)
    adam = Schedule(30, 1e-3, (15, 25), 2e-4)
    config.efc.recipe = Recipe(64, adam, Schedule(20, 2e-3, (), 2e-4))  # 4 steps an epoch: 1e-4 would not move
    for options in (config.fcs, config.pass_, config.il2a):
        options.recipe = Recipe(32, Schedule(12, 1e-3, (6, 10), 2e-4), Schedule(8, 1e-3, (4, 6), 2e-4))
    config.frozen.recipe.batch_size, config.frozen.recipe.first.epochs = 64, 30
    config.ssre.recipe = Recipe(64, Schedule(30, 1e-3, (15, 25), 2e-4), Schedule(20, 2e-3, (15,), 5e-4))
    config.ldc.epochs, config.ldc.lr = 40, 5e-3  # an epoch has 5 steps, and it starts from a random matrix
    config.dpcr.gamma = 60.0  # 200 in proportion to the images of a class: 145 instead of CIFAR-100's 500
    config.evolution.capacity = 300
    config.testtime.batch_size = 40  # of 360 test images in all: 200 would be two steps
    config.ttt.augment = "shift"  # a mirrored digit is no digit
    config.test.batches_per_call = 1
    return config
