"""CIFAR-100, cold start, 20 tasks: 20 tasks of 5 classes. The paper's Table 1, RoSE 44.10.

Command:   python -m rose_jax.main --config configs/cifar100_cold20.py
Hardware:  one accelerator and up; presets for a CPU: :thin (width 16, 24 + 10 epochs), :micro (16 x 16 pixels), :smoke (seconds)
Time:      the TPU compiler's estimate is in docs/scaling.md; on a TPU use the preset :tpu
Expected:  44.10 last accuracy with the full setting (the paper's figure; not run here)
"""

from rose_jax.config import Config
from rose_jax.settings import preset, setting


def get_config(arg: str = "") -> Config:
    config = setting("cifar100_cold20", "cifar100", "cold", 20)
    return preset(config, arg)
