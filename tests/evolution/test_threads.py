"""BLAS has one thread while a stream is classified, and its own number before and after."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import threadpoolctl

from rose_jax import Evolution
from rose_jax.evolution import threads
from rose_jax.evolve import features
from rose_jax.runtime.sharding import Layout
from rose_jax.testtime.stream import feature_calls, run_stream


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    """Whatever the machine has."""
    jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        assert blas_threads() == {2}
        yield
        assert blas_threads() == {2}, "as it was"


def test_a_stream_of_a_run():
    seen = []

    def stream(state, batches):
        seen.append(blas_threads())
        return state, jnp.zeros((2, 4), jnp.int32)

    features, layout = np.zeros((11, 3), np.float32), Layout()
    calls = feature_calls(features, features, layout=layout, batch_size=4, batches_per_call=2)
    programs = SimpleNamespace(compiled=lambda name, function, *args: function)
    result = run_stream(stream, jnp.zeros(1), calls, layout=layout, programs=programs, name="stream")
    assert seen == [{1}] * 2
    assert result.predictions.shape == (11,)


def test_a_step_of_an_evolution(monkeypatch):
    real, seen = features._step, []
    monkeypatch.setattr(features, "_step", lambda *args: seen.append(blas_threads()) or real(*args))
    evolution = Evolution(capacity=8)
    state = evolution.init(np.eye(3), np.eye(3))
    evolution.step(state, np.eye(3), np.eye(3))
    assert seen == [{1}]


def test_a_step_inside_jit_is_left_alone():
    evolution = Evolution(capacity=8)
    state = evolution.init(np.eye(3), np.eye(3))
    together = jax.jit(lambda state, z: evolution.step(state, z, z)[1])(state, jnp.eye(3))
    np.testing.assert_array_equal(together, evolution.step(state, np.eye(3), np.eye(3))[1])


def test_an_error_gives_the_threads_back():
    def fail(x):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        threads.wait_with_one_blas_thread(fail, jnp.zeros(1))


def test_the_limit_ends_when_nobody_is_inside():
    first, second = threads.one_blas_thread(), threads.one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert blas_threads() == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == {2}


def test_accelerators_are_neither_limited_nor_waited_for(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "block_until_ready", lambda x: pytest.fail("waited"))
    assert threads.wait_with_one_blas_thread(lambda x: blas_threads(), jnp.zeros(1)) == {2}
