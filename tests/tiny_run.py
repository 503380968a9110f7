"""The config of a run of seconds, three tasks of digits, which most tests of whole runs share.

What one of them compiled the others read from the cache, as long as only numbers of theirs differ.
"""

from configs import digits_cold5
from rose_jax.config import Config


def get_config(arg: str = "") -> Config:
    config = digits_cold5.get_config(arg)
    config.methods = Config().methods
    config.scenario.task_sizes = (4, 3, 3)
    config.model.encoder, config.model.width = "tiny", 2
    config.train.first.epochs, config.train.later.epochs = 2, 1
    config.train.first.milestones = config.train.later.milestones = ()
    config.evolution.capacity, config.test.batch_size = 64, 128
    config.ldc.epochs, config.adc.samples = 1, 10
    return config
