"""One device or eight: the same program, so the same numbers up to rounding.

Training is chaotic (4e-8 after one step became 9e-2 after 300), so float32 is compared after three steps and a
whole task in float64.
"""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from configs.digits_cold5 import get_config
from rose_jax.data.pipeline import TrainingBatches
from rose_jax.experiment import make_features
from rose_jax.methods import METHODS
from rose_jax.run.features import Features
from rose_jax.run.scoring import Scorer
from rose_jax.run.stage import Stage
from rose_jax.runtime.sharding import Layout, in_order
from rose_jax.train.loop import make_task, train_steps
from rose_jax.train.objectives import make_objective
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import ClassMemory, Objective, Snapshot


def config(dtype="float32", batch_size=60, encoder="tiny"):
    """60 does not divide by 8: four rows of padding."""
    made = get_config()
    made.model.encoder, made.model.width, made.model.compute_dtype = encoder, 2, dtype
    made.train.batch_size = batch_size
    made.train.first.epochs, made.train.first.milestones = 1, ()
    made.train.later.epochs, made.train.later.milestones = 1, ()
    made.scenario.task_sizes = (5, 5)
    made.evolution.capacity = 100
    return made


class Built(NamedTuple):
    features: Features
    objective: Objective
    batches: TrainingBatches

    @property
    def images(self):
        return self.features.images

    @property
    def layout(self):
        return self.features.images.layout

    def task(self, index):
        return make_task(self.images, 2e-4, index)

    def begin(self, prev, index):
        return self.layout.replicate(make_begin(self.objective)(prev, self.task(index)))

    def view(self, index, snapshots=(), stream=None):
        stream = np.empty(0, int) if stream is None else stream
        return Stage(self.features, index, snapshots, stream, self.batches.options.batch_size)


def build(made, devices, name="base") -> Built:
    features = make_features(made, Layout(jax.devices()[:devices]))
    objective = make_objective(name, features.parts)
    return Built(features, objective, TrainingBatches(features.images, objective.train or made.train))


def snapshot_of(state):
    variables = {"params": state.trainable["encoder"], "batch_stats": state.kept}
    dim = state.trainable["projector"].shape[0]
    memory = ClassMemory(np.zeros((10, dim), np.float32), np.full(10, -1, np.int32))
    return Snapshot(variables, state.trainable["head"], state.trainable["projector"], memory, {})


def train(made, devices, steps, common_first=None):
    """So many steps of both tasks; the second starts from `common_first` if it is given."""
    built, states, prev = build(made, devices), [], None
    step = make_step(built.objective, built.layout)
    for index in range(2):
        states.append(jax.device_get(some_steps(built, step, built.begin(prev, index), prev, index, steps)))
        prev = built.layout.replicate(snapshot_of(common_first or states[-1]))
    return states


def some_steps(built, step, state, prev, task, steps):
    """So many steps of a task; 0 are all."""
    stopped = []

    def stop(state, done, window):
        if steps and done == steps:
            stopped.append(state)
            raise StopIteration

    try:
        return train_steps(
            step, state, prev, built.batches, built.task(task), task, log=lambda line: None, after_call=stop
        )
    except StopIteration:
        return stopped[0]


def assert_agree(one, two, tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def alone():
    return train(config(), 1, 3)


@pytest.mark.parametrize("devices", [2, 8])
def test_three_float32_steps_agree(alone, devices):
    many = train(config(), devices, 3, common_first=alone[0])
    for one, other in zip(alone, many, strict=True):
        assert_agree(one.trainable, other.trainable, 1e-5)
        assert_agree(one.kept, other.kept, 1e-5)


@pytest.mark.slow
def test_whole_tasks_in_float64_agree():
    with jax.enable_x64(True):
        one, two, eight = (train(config("float64", encoder="resnet18"), devices, 0) for devices in (1, 2, 8))
    for many in (two, eight):
        for a, b in zip(one, many, strict=True):
            assert_agree(a.trainable, b.trainable, 1e-8)
            assert_agree(a.kept, b.kept, 1e-8)


# Adam divides by the gradient's own size, so that in float32 a gradient that is all rounding moves a weight as far as
# any other; in float64 it is below notice.
COMPARED = [
    ("base", "float32", 1e-5),
    ("lwf", "float32", 1e-5),
    ("efc", "float64", 1e-8),
    ("fcs", "float64", 1e-8),
    ("ssre", "float64", 1e-8),
    ("pass", "float64", 1e-8),
    ("il2a", "float64", 1e-8),
    ("base_rotation", "float32", 1e-5),
    ("base_simclr", "float64", 1e-8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "tolerance"), COMPARED)
def test_three_steps_after_the_same_first_task_agree(name, dtype, tolerance):
    """Of every other objective, with its own batches and whatever it holds of the first task."""
    with jax.enable_x64(dtype == "float64"):
        ends = [jax.device_get(end) for end in second_tasks(config(dtype, encoder="resnet18"), name)]
    assert_agree(ends[0].trainable, ends[1].trainable, tolerance)
    assert_agree(ends[0].kept, ends[1].kept, tolerance)


def second_tasks(made, name):
    """Three steps of the second task on one device and on eight, after a first one that they share."""
    for options in (made.efc, made.fcs, made.ssre, made.pass_, made.il2a):
        options.recipe.batch_size = 20

    built = build(made, 1, name)
    step = make_step(built.objective, built.layout)
    state = some_steps(built, step, built.begin(None, 0), None, 0, 3)
    snapshot = built.objective.finish(state.trainable, state.kept, None, built.view(0), built.task(0))
    ends = []
    for devices in (1, 8):
        built = build(made, devices, name)
        prev = built.layout.replicate(jax.device_get(snapshot))
        step = make_step(built.objective, built.layout)
        ends.append(some_steps(built, step, built.begin(prev, 1), prev, 1, 3))
    return ends


def test_each_process_holds_one_range_of_rows():
    """On TPU slices the wiring would interleave the hosts' chips."""
    wired = [SimpleNamespace(process_index=p, id=i) for p, i in ((0, 0), (1, 2), (0, 1), (1, 3))]
    assert [device.process_index for device in in_order(wired)] == [0, 0, 1, 1]
    assert [device.id for device in Layout(jax.devices()[::-1]).mesh.devices] == list(range(8))


def test_test_images_are_encoded_by_all_devices():
    """Eight devices do an eighth of the work each; a sum of all of it in one program would be copied, not split."""
    made, flops = config(), {}
    made.test.batch_size = 64
    for devices in (1, 8):
        built = build(made, devices)
        variables = snapshot_of(built.begin(None, 0)).variables
        images, index, _ = next(built.images.evaluated("test", np.arange(64), 64))
        program = built.features.encoding.lower(variables, images, index).compile()
        flops[devices] = program.cost_analysis()["flops"]
    assert flops[8] < flops[1] / 6


def test_the_same_snapshots_stream_alike_on_one_and_eight_devices(alone):
    made = config()
    predictions = {}
    for devices in (1, 8):
        built, snapshots = build(made, devices), []
        for task, state in enumerate(alone):
            prev = snapshots[-1] if snapshots else None
            placed = built.layout.replicate((state.trainable, state.kept))
            snapshots.append(built.objective.finish(*placed, prev, built.view(task, snapshots), built.task(task)))
        scorer = Scorer("rose", METHODS["rose"], built.features.parts, built.layout, None)
        for task in range(2):
            stream = built.images.stream(task)
            outcome = scorer.score(built.view(task, snapshots, stream))
        predictions[devices] = outcome.predictions
        assert len(outcome.predictions) == len(stream), "evaluation drops nothing"
    assert np.mean(predictions[1] == predictions[8]) >= 0.995


def test_bfloat16_encoders_keep_everything_else_float32():
    built = build(config("bfloat16"), 1)
    state = jax.eval_shape(make_begin(built.objective), None, built.task(0))
    feed, _ = next(built.batches.feeds(0, 0, 1))
    step, lr = make_step(built.objective, built.layout), np.ones(1, np.float32)
    after, terms = jax.eval_shape(step, state, None, built.images.resident("train"), feed, lr, built.task(0))
    floats = [leaf.dtype for leaf in jax.tree.leaves((after, terms)) if leaf.dtype.kind == "f"]
    assert set(floats) == {np.dtype("float32")}
    features = jax.eval_shape(
        lambda v, x: built.features.parts.encoder.apply(v, x)[0],
        {"params": state.trainable["encoder"], "batch_stats": state.kept},
        jax.ShapeDtypeStruct((4, 8, 8, 3), np.float32),
    )
    assert features["feature"].dtype == np.float32
    assert features["layer3"].dtype == jax.numpy.bfloat16
