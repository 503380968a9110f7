"""What happens while unlabelled test images stream by: one file per method, one line here."""

from collections.abc import Callable

from rose_jax.config import Config
from rose_jax.testtime import evolution as evolve
from rose_jax.testtime import none
from rose_jax.types import TestTime

TEST_TIMES: dict[str, Callable[[Config], TestTime]] = {
    "none": none.make,
    "rose": evolve.make_rose,
    "gd": evolve.make_gd,
    "gd_queue": evolve.make_gd_queue,
}
