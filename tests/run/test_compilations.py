"""Ten tasks are compiled as often as two: what grows with the run is traced, not compiled in."""

import secrets

import jax
import pytest
import tiny_run
from support import unpainted

from rose_jax import experiment
from rose_jax.runtime.sharding import Layout


class Compilations:
    """Counts backend compilations by the name of what is compiled."""

    def __init__(self):
        self.names: list[str] = []

    def __call__(self, event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            self.names.append(kwargs.get("fun_name", ""))


@pytest.fixture(scope="module")
def ten_tasks(tmp_path_factory):
    """Results of a run over ten tasks of one class each, and the names of all that was compiled for it."""
    config = tiny_run.get_config()
    config.scenario.task_sizes = (1,) * 10
    config.train.first.epochs = 1
    config.methods = ("base", "projector", "gd", "rose")
    counter = Compilations()
    jax.monitoring.register_event_duration_secs_listener(counter)
    try:
        results = experiment.run(config, tmp_path_factory.mktemp("run"), layout=Layout(jax.devices()[:1]))
    finally:
        jax.monitoring.unregister_event_duration_listener(counter)
    assert [len(classes) for classes in results["setting"]["task_classes"]] == [1] * 10
    return results, counter.names


def test_two_training_programs_in_ten_tasks(ten_tasks):
    results, names = ten_tasks
    assert sum("jit(step)" in name for name in names) == 2, names
    assert results["train"]["compilations"] == 2


def test_streams_compile_once_per_row_in_ten_stages(ten_tasks):
    """Rows that evolve have two programs: the first stage, which has no old encoder, and all others."""
    assert sum("stream_batches" in name for name in ten_tasks[1]) == 1 + 1 + 2 + 2, ten_tasks[1]


def test_another_seed_compiles_nothing(finished, tmp_path):
    """Seeds are traced: what a sweep's first run has compiled, the others read from the cache."""
    config, missed = tiny_run.get_config(), []
    config.seed = secrets.randbelow(2**32)  # one that no earlier session has compiled, if it had to be

    def note(event, **kwargs):
        if event == "/jax/compilation_cache/cache_misses":
            missed.append(event)

    jax.monitoring.register_event_listener(note)
    try:
        with unpainted():
            experiment.run(config, tmp_path / "run", layout=Layout(jax.devices()[:1]))
    finally:
        jax.monitoring.unregister_event_listener(note)
    assert not missed
