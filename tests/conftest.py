"""Tests run on the CPU with eight fake devices and refuse silent broadcasting between ranks."""

import fcntl
import gc
import json
import os
import shutil
from importlib import metadata

# Before jax is imported. Fake devices on few cores deadlock without a larger thread pool.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of what the tests do, for nets that are too small to need fast code: without LLVM's optimiser,
# XLA's fusion emitters and code in 32 parts a training step compiles in a tenth of the time. XLA aborts at a flag that
# it does not know, so the last two are given to the versions that were tried.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if metadata.version("jaxlib").startswith(("0.8.", "0.9.", "0.10."))
        else "",
    )
)

import jax
import pytest
from absl import flags

jax.config.update("jax_numpy_rank_promotion", "raise")
# What one test compiled, the others read, and the next session's: many runs of one config have the same programs.
jax.config.update(
    "jax_compilation_cache_dir", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "jax")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
# Tracing is much of the rest: without the source line of every operation, and seldom interrupted to look for garbage.
jax.config.update("jax_traceback_in_locations_limit", 0)
gc.freeze()
gc.set_threshold(50_000, 20, 50)
flags.FLAGS.mark_as_parsed()  # grain asks for it


def pytest_sessionfinish():
    gc.freeze()  # or pytest's last look for garbage would take seconds


@pytest.fixture(scope="session")
def one_device():
    from rose_jax.runtime.sharding import Layout

    return Layout(jax.devices()[:1])


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(workdir, results) of tests/tiny_run.py on one device, to be read; copy it to change it.

    One worker of a session trains it, each has a copy.
    """
    import support
    import tiny_run

    from rose_jax import experiment
    from rose_jax.runtime.sharding import Layout

    base = tmp_path_factory.getbasetemp()
    original = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    with (original.parent / "finished.lock").open("w") as lock, support.unpainted():
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (original / "results.json").exists():
            experiment.run(tiny_run.get_config(), original, layout=Layout(jax.devices()[:1]))
    workdir = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(original, workdir)
    return workdir, json.loads((workdir / "results.json").read_text())


STRICT = (
    "test_losses",
    "test_autoaugment",
)  # modules whose code mixes no dtypes; elsewhere masks are added to floats


@pytest.fixture(autouse=True)
def strict_dtype_promotion(request):
    if request.module.__name__.split(".")[-1] not in STRICT:
        yield
        return
    with jax.numpy_dtype_promotion("strict"):
        yield
