"""ImageNet-100, warm start, 10 tasks: a first task of 50 classes, then 10 of 5. The paper's Table 2, RoSE 69.62.

Command:   python -m rose_jax.main --config configs/imagenet100_warm10.py
Hardware:  one accelerator and up; presets for a CPU: :thin (width 16, 24 + 10 epochs), :smoke (seconds)
Time:      the TPU compiler's estimate is in docs/scaling.md; on a TPU use the preset :tpu
Expected:  69.62 last accuracy with the full setting (the paper's figure; not run here)
"""

from rose_jax.config import Config
from rose_jax.settings import preset, setting


def get_config(arg: str = "") -> Config:
    config = setting("imagenet100_warm10", "imagenet100", "warm", 10)
    config.train.later.lr = 0.03
    return preset(config, arg)
