"""CIFAR-100, warm start, 10 tasks: a first task of 50 classes, then 10 of 5. The paper's Table 2, RoSE 64.46.

Command:   python -m rose_jax.main --config configs/cifar100_warm10.py
Hardware:  one accelerator and up; presets for a CPU: :thin (width 16, 100 images a class, 3 + 2 epochs), :micro (16 x 16 pixels), :smoke (seconds)
Time:      the TPU compiler's estimate is in docs/scaling.md; on a TPU use the preset :tpu
Expected:  64.46 last accuracy with the full setting (the paper's figure; not run here)
"""

from rose_jax.config import Config
from rose_jax.settings import preset, setting


def get_config(arg: str = "") -> Config:
    config = setting("cifar100_warm10", "cifar100", "warm", 10)
    config.train.later.lr = 0.05
    return preset(config, arg)
