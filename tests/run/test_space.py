"""The room that checkpoints will take is known before anything is trained, an objective's own parts included."""

import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from rose_jax.run.space import checkpoint_bytes

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax.errors import UserError
from rose_jax.models.resnet import resnet18
from rose_jax.runtime.sharding import Layout
from rose_jax.train.step import make_begin

WIDTH, CLASSES, DIM, BATCH = 2, 10, 16, 32
STEP, COUNTS = 1, 1  # integers of an optimiser or of the state


def sizes_of(name):
    config = small_config(name)
    pipeline = experiment.make_pipeline(config, Layout(jax.devices()[:1]))
    objective = experiment._objective(name, config, pipeline)
    return checkpoint_bytes(objective, make_begin(objective, 0), pipeline.with_schedule(objective.train))


def small_config(name):
    config = get_config()
    config.scenario.task_sizes = (4, 3, 3)
    config.model.width, config.efc.recipe.batch_size = WIDTH, BATCH
    config.methods = (name,)
    return config


def floats(tree):
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def network():
    """Numbers in the encoder's parameters, its kernels alone, and its batch statistics."""
    variables = jax.eval_shape(resnet18(WIDTH).init, jax.random.key(0), np.zeros((8, 8, 3), np.float32))
    kernels = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(variables["params"]) if path[-1].key == "kernel"
    ]
    return floats(variables["params"]), floats(kernels), floats(variables["batch_stats"])


def test_base(network):
    parameters, _, statistics = network
    found = sizes_of("base")
    head, projector = CLASSES * DIM + 1, DIM * DIM  # a cosine head has a scale
    memory = CLASSES * DIM + CLASSES
    assert found.snapshot == 4 * (parameters + statistics + head + projector + memory)
    momentum, adam = parameters + head, 2 * projector + COUNTS
    state = 4 * (parameters + statistics + head + projector + momentum + adam + STEP)
    assert found.states == (state, state, state)


def test_the_gaussians_and_the_buffer_of_efc_are_counted(network):
    parameters, kernels, statistics = network
    found = sizes_of("efc")
    head, projector = CLASSES * DIM, DIM * DIM
    memory = CLASSES * DIM + CLASSES
    extra = DIM * DIM + CLASSES * DIM + CLASSES * DIM * DIM  # E, means, factors of the covariances
    assert found.snapshot == 4 * (parameters + statistics + head + projector + memory + extra)
    buffer = BATCH * 8 * 8 * 3 + BATCH + 1
    adam = 2 * (kernels + head + projector) + 3 * COUNTS
    later = 4 * (parameters + statistics + head + projector + buffer + adam + STEP)
    assert found.states[1:] == (later, later)
    assert found.states[0] != later, "the first task has a head for rotations and no buffer"


def test_fcs_keeps_a_variance_per_class(network):
    parameters, _, statistics = network
    head, projector = 4 * CLASSES * (DIM + 1), DIM * DIM
    memory = CLASSES * DIM + CLASSES
    assert sizes_of("fcs").snapshot == 4 * (parameters + statistics + head + projector + memory + CLASSES)


def test_a_disk_without_room_for_them_is_refused_at_the_start(tmp_path, monkeypatch):
    found = sizes_of("efc")
    needed = 3 * found.snapshot + 3 * max(found.states)
    monkeypatch.setattr("rose_jax.run.trajectory.train_steps", None)  # calling it would fail
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    words = rf"needs about {needed / 2**20:.0f} MiB for its checkpoints, but .*MiB free. Make room"
    with pytest.raises(UserError, match=words):
        experiment.run(small_config("efc"), tmp_path, layout=Layout(jax.devices()[:1]))
    monkeypatch.setattr(shutil, "disk_usage", real)
