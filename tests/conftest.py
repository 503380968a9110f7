"""Tests run on the CPU with eight fake devices and refuse silent broadcasting between ranks."""

import os
from importlib import metadata

# Before jax is imported. Fake devices on few cores deadlock without a larger thread pool.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of what the tests do, for nets that are too small to need fast code: without LLVM's optimiser and
# XLA's fusion emitters a ResNet's training step compiles in a sixth of the time. XLA aborts at a flag that it does not
# know, so the last one is given to the versions that were tried.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false"
        if metadata.version("jaxlib").startswith(("0.8.", "0.9.", "0.10."))
        else "",
    )
)

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
    from rose_jax.runtime.sharding import Layout

    return Layout(jax.devices()[:1])
