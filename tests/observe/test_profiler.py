"""--profile: a trace of the steps asked for, however many a call takes."""

import jax
import jax.numpy as jnp
import pytest

from rose_jax.runtime.profiler import WARM_UP, Profiler


@pytest.mark.parametrize("per_call", [1, 50])
def test_traces_so_many_steps_after_the_warm_up(tmp_path, monkeypatch, per_call):
    begun, ended = [], []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: begun.append((folder, step)))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: ended.append(step))
    profiler = Profiler(tmp_path / "profile", 2)
    for call in range(1, 10):
        step = call * per_call
        profiler.after_step(step, jnp.zeros(()))
    assert begun == [(str(tmp_path / "profile"), WARM_UP * per_call)]
    assert ended == [(WARM_UP + (2 if per_call == 1 else 1)) * per_call]
    profiler.close()
    assert len(ended) == 1


def test_writes_a_trace_and_nothing_unless_asked(tmp_path):
    work = jax.jit(lambda x: x @ x)
    for steps, folder in ((2, tmp_path / "asked"), (0, tmp_path / "not")):
        profiler, x = Profiler(folder, steps), jnp.eye(4)
        for step in range(1, 8):
            x = work(x)
            profiler.after_step(step, x)
        profiler.close()
    assert list((tmp_path / "asked").rglob("*.xplane.pb"))
    assert not (tmp_path / "not").exists()
