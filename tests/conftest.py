"""Tests run on the CPU with eight fake devices and refuse silent broadcasting between ranks."""

import os

# Before jax is imported. Fake devices on few cores deadlock without a larger thread pool.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import pytest
from absl import flags

jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling is most of what the tests do; what one run compiled, the next one reads.
jax.config.update(
    "jax_compilation_cache_dir", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "jax")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
flags.FLAGS.mark_as_parsed()  # grain asks for it


@pytest.fixture(scope="session")
def one_device():
    from rose_jax.sharding import Layout

    return Layout(jax.devices()[:1])
