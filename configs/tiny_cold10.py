"""TinyImageNet, cold start, 10 tasks: 10 tasks of 20 classes. The paper's Table 1, RoSE 39.93.

Command:   python -m rose_jax.main --config configs/tiny_cold10.py
Hardware:  one accelerator and up; presets for a CPU: :thin (width 16, 24 + 10 epochs), :smoke (seconds)
Time:      the TPU compiler's estimate is in docs/scaling.md; on a TPU use the preset :tpu
Expected:  39.93 last accuracy with the full setting (the paper's figure; not run here)
"""

from rose_jax.config import Config
from rose_jax.settings import preset, setting


def get_config(arg: str = "") -> Config:
    config = setting("tiny_cold10", "tiny", "cold", 10)
    return preset(config, arg)
