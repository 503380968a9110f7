"""What somebody on an accelerator meets first: where compiled programs are kept, what is said while they are compiled."""

import logging
import os

import jax
import numpy as np
import pytest
from support import exit_code

from rose_jax import experiment
from rose_jax.runtime.programs import STEP_MINUTES, Programs, for_convolutions
from rose_jax.runtime.target import tracing_for


@pytest.fixture
def cache(monkeypatch):
    """The folder that cache_compilations chose; the tests' own stays."""
    chosen = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    return lambda: chosen.get("jax_compilation_cache_dir")


@pytest.mark.parametrize("backend", ["tpu", "gpu"])
def test_accelerators_keep_what_they_compiled_beside_the_runs(cache, monkeypatch, tmp_path, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    experiment.cache_compilations(tmp_path / "runs" / "one")
    assert cache() == str(tmp_path / "runs" / ".jax_cache")


def test_a_cpu_keeps_it_at_home(cache, tmp_path):
    experiment.cache_compilations(tmp_path / "runs" / "one")
    assert cache() == os.path.expanduser("~/.cache/rose_jax/jax")


def test_a_place_that_was_chosen_is_kept(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    experiment.cache_compilations(tmp_path / "runs" / "one")
    assert cache() is None


def test_compiling_is_announced_once(caplog):
    caplog.set_level(logging.INFO)
    double = jax.jit(lambda x: 2 * x)
    steps, others = Programs("the training step of base", STEP_MINUTES), Programs("features")
    for _ in range(2):
        steps.compiled("first task", double, 1.0)
        others.compiled("encode test", double, 1.0)
    assert caplog.messages == ["compiling the training step of base, first task ..."]  # on a CPU the rest is quick
    with tracing_for("tpu"):
        steps.compiled("later tasks", double, 1.0)
        others.compiled("encode train", double, 1.0)
    assert caplog.messages[1:] == [
        "compiling the training step of base, later tasks (about 3 minutes the first time) ...",
        "compiling features, encode train (about 1 minute the first time) ...",
    ]


def test_encoders_on_a_cpu_keep_away_from_a_library_of_one_core():
    convolve = jax.jit(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"))
    x, k = jax.numpy.ones((16, 32, 8, 8)), jax.numpy.ones((32, 32, 3, 3))
    others = [for_convolutions()]  # eight devices
    with tracing_for("tpu"):
        others.append(for_convolutions())
    assert others == [None, None]
    with tracing_for("cpu"):
        compiled = Programs(convolves=True).compiled("encode", convolve, x, k)
    assert "ynn" not in compiled.as_text()
    np.testing.assert_allclose(compiled(x, k), convolve(x, k), rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "before", "after"),
    [
        ((), "--some=1", "--some=1 --xla_gpu_deterministic_ops=true"),
        (("--nodeterministic",), "--some=1", "--some=1"),
        ((), "--xla_gpu_deterministic_ops=false", "--xla_gpu_deterministic_ops=false"),
    ],
)
def test_deterministic_operations_are_a_choice(monkeypatch, given, before, after):
    seen = []
    monkeypatch.setattr(experiment, "run", lambda *_, **__: seen.append(os.environ["XLA_FLAGS"]))
    monkeypatch.setenv("XLA_FLAGS", before)
    assert exit_code("--config", "configs/digits_cold5.py", *given) == 0
    assert seen == [after]
