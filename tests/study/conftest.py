"""All studies on the small run, once."""

import contextlib
import shutil

import jax
import pytest
from support import unpainted

from rose_jax import experiment
from rose_jax.runtime.sharding import Layout
from rose_jax.study import Subject, adaptation, cost, metric, samples, sweep
from rose_jax.study.__main__ import main


@contextlib.contextmanager
def cut_down():
    """One device, and every study cut down to what shows that it works."""
    with pytest.MonkeyPatch.context() as patch, unpainted():
        patch.setattr(experiment, "Layout", lambda: Layout(jax.devices()[:1]))
        patch.setattr("rose_jax.study.__main__.cache_compilations", lambda workdir: None)
        patch.setattr(samples, "SIZES", (1, 5))
        patch.setattr(samples, "STARTS", ("trained",))
        patch.setattr(sweep, "CAPACITIES", ())
        patch.setattr(sweep, "ALPHAS", (0.02, 0.2))
        patch.setattr(sweep, "GRANULARITIES", (1, 128))
        patch.setattr(cost, "GRANULARITIES", (1,))
        patch.setattr(metric, "ROWS", ("projector", "rose"))
        patch.setattr(metric, "ALTERNATIVES", {metric.QUEUE: {"source": "queue"}, "refresh 0": {"refresh": 0}})
        patch.setattr(cost, "EVERY", (1, 4))
        patch.setattr(cost, "MOST_IMAGES", 128)
        patch.setattr(cost, "ADAPTING", ("tent", "ttt"))  # the run has no encoders for the last
        patch.setattr(adaptation, "ROWS", ("projector", "batch_norm", "tent", "ttt", "rose"))
        yield


@pytest.fixture(scope="module", autouse=True)
def only_what_shows_that_it_works():
    """For the modules of this folder; a patch of the whole session would reach other folders' tests."""
    with cut_down():
        yield


@pytest.fixture(scope="session")
def studied(finished, tmp_path_factory):
    """A copy of the run after `all`: (workdir, exit code)."""
    workdir = tmp_path_factory.mktemp("studied") / "run"
    shutil.copytree(finished[0], workdir)
    with cut_down():
        return workdir, main(["all", "--draws", "2", "--thorough", "--workdir", str(workdir)])


@pytest.fixture(scope="session")
def subject(finished, tmp_path_factory):
    """Opened for tests of single parts."""
    workdir = tmp_path_factory.mktemp("subject") / "run"
    shutil.copytree(finished[0], workdir)
    subject = Subject(workdir, draws=2)
    yield subject
    subject.close()
