"""One tiny run, three tasks of digits, and all studies on it once."""

import base64
import contextlib
import json
import shutil

import jax
import pytest

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax.report import style
from rose_jax.runtime.sharding import Layout
from rose_jax.study import Subject, cost, metric, samples, sweep
from rose_jax.study.__main__ import main

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsVEzgQAAAABJRU5ErkJggg=="
)


def tiny_config():
    config = get_config()
    config.scenario.task_sizes = (4, 3, 3)
    config.model.width = 2
    config.train.first.epochs, config.train.later.epochs = 2, 1
    config.train.first.milestones = config.train.later.milestones = ()
    config.evolution.capacity = 64
    config.ldc.epochs, config.adc.samples = 1, 10
    return config


@contextlib.contextmanager
def cut_down():
    """One device, and every study cut down to what shows that it works."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "Layout", lambda: Layout(jax.devices()[:1]))
        patch.setattr("rose_jax.study.__main__.cache_compilations", lambda: None)
        # Figures are made, only not painted, which would be most of the time.
        patch.setattr(style, "png", lambda figure: PIXEL)
        patch.setattr(samples, "SIZES", (1, 5))
        patch.setattr(samples, "STARTS", ("trained",))
        patch.setattr(sweep, "CAPACITIES", ())
        patch.setattr(sweep, "ALPHAS", (0.02, 0.2))
        patch.setattr(sweep, "GRANULARITIES", (1, 128))
        patch.setattr(cost, "GRANULARITIES", (1,))
        patch.setattr(metric, "ROWS", ("projector", "rose"))
        patch.setattr(metric, "ALTERNATIVES", {"refresh 0": {"refresh": 0}})
        patch.setattr(cost, "EVERY", (1, 4))
        patch.setattr(cost, "MOST_IMAGES", 128)
        yield


@pytest.fixture(scope="module", autouse=True)
def only_what_shows_that_it_works():
    """For the modules of this folder; a patch of the whole session would reach other folders' tests."""
    with cut_down():
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(workdir, results) of a run that nothing may change; copy it to break it."""
    workdir = tmp_path_factory.mktemp("run")
    with cut_down():
        experiment.run(tiny_config(), workdir, layout=Layout(jax.devices()[:1]))
    return workdir, json.loads((workdir / "results.json").read_text())


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
