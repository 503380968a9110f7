"""One device or eight: the same program, so the same numbers up to rounding.

Training is chaotic (4e-8 after one step became 9e-2 after 300), so float32 is compared after three steps and a
whole task in float64.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from configs.digits_cold5 import get_config
from rose_jax.data import augment, sources
from rose_jax.data.pipeline import Pipeline
from rose_jax.data.scenario import make_scenario
from rose_jax.methods import METHODS
from rose_jax.models import make_encoder
from rose_jax.run.scoring import Scorer
from rose_jax.run.stage import Stage
from rose_jax.runtime.sharding import Layout, in_order
from rose_jax.train.loop import make_task, train_steps
from rose_jax.train.objectives import make_objective
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import ClassMemory, Snapshot


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


def build(made, devices, name="base"):
    layout = Layout(jax.devices()[:devices])
    dataset = sources.load("digits")
    encoder = make_encoder(made.model)
    pipeline = Pipeline(made, dataset, make_scenario(made.scenario, 10), encoder, layout)
    transform = augment.train_transform("shift", normalisation="digits", pad=2)
    objective = make_objective(
        name, config=made, encoder=encoder, num_classes=10, image_shape=(8, 8, 3), transform=transform
    )
    return pipeline, objective


def snapshot_of(state):
    variables = {"params": state.trainable["encoder"], "batch_stats": state.batch_stats}
    dim = state.trainable["projector"].shape[0]
    memory = ClassMemory(np.zeros((10, dim), np.float32), np.full(10, -1, np.int32))
    return Snapshot(variables, state.trainable["head"], state.trainable["projector"], memory, {})


def train(made, devices, steps, common_first=None):
    """So many steps of both tasks; the second starts from `common_first` if it is given."""
    pipeline, objective = build(made, devices)
    layout = pipeline.layout
    step, begin = make_step(objective, layout, 0), make_begin(objective, 0)
    states = []
    prev = None
    for index in range(2):
        state = layout.replicate(begin(prev, make_task(pipeline, index)))
        states.append(jax.device_get(some_steps(step, state, prev, pipeline, index, steps)))
        prev = layout.replicate(snapshot_of(common_first or states[-1]))
    return states


def some_steps(step, state, prev, pipeline, task, steps):
    """So many steps of a task; 0 are all."""
    stopped = []

    def stop(state, done, window):
        if steps and done == steps:
            stopped.append(state)
            raise StopIteration

    try:
        return train_steps(step, state, prev, pipeline, task, log=lambda line: None, after_call=stop)
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
        assert_agree(one.batch_stats, other.batch_stats, 1e-5)


@pytest.mark.slow
def test_whole_tasks_in_float64_agree():
    with jax.enable_x64(True):
        one, two, eight = (train(config("float64", encoder="resnet18"), devices, 0) for devices in (1, 2, 8))
    for many in (two, eight):
        for a, b in zip(one, many, strict=True):
            assert_agree(a.trainable, b.trainable, 1e-8)
            assert_agree(a.batch_stats, b.batch_stats, 1e-8)


# Adam divides by the gradient's own size, so that in float32 a gradient that is all rounding moves a weight as far as
# any other; in float64 it is below notice.
COMPARED = [
    ("base", "float32", 1e-5),
    ("lwf", "float32", 1e-5),
    ("efc", "float64", 1e-8),
    ("fcs", "float64", 1e-8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "tolerance"), COMPARED)
def test_three_steps_after_the_same_first_task_agree(name, dtype, tolerance):
    """Of every other objective, with its own batches and whatever it holds of the first task."""
    with jax.enable_x64(dtype == "float64"):
        ends = [jax.device_get(end) for end in second_tasks(config(dtype, encoder="resnet18"), name)]
    assert_agree(ends[0].trainable, ends[1].trainable, tolerance)
    assert_agree(ends[0].batch_stats, ends[1].batch_stats, tolerance)


def second_tasks(made, name):
    """Three steps of the second task on one device and on eight, after a first one that they share."""
    made.efc.recipe.batch_size = made.fcs.recipe.batch_size = 20

    def parts(devices):
        pipeline, objective = build(made, devices, name)
        pipeline = pipeline.with_schedule(objective.train)
        return pipeline, objective, make_begin(objective, 0), make_step(objective, pipeline.layout, 0)

    pipeline, objective, begin, step = parts(1)
    task = make_task(pipeline, 0)
    state = some_steps(step, pipeline.layout.replicate(begin(None, task)), None, pipeline, 0, 3)
    view = Stage(pipeline, 0, [], np.empty(0, int))
    snapshot = jax.device_get(objective.finish(state.trainable, state.batch_stats, None, view, task))
    ends = []
    for devices in (1, 8):
        pipeline, objective, begin, step = parts(devices)
        prev = pipeline.layout.replicate(snapshot)
        state = pipeline.layout.replicate(begin(prev, make_task(pipeline, 1)))
        ends.append(some_steps(step, state, prev, pipeline, 1, 3))
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
        pipeline, objective = build(made, devices)
        state = make_begin(objective, 0)(None, make_task(pipeline, 0))
        variables = pipeline.layout.replicate(snapshot_of(state).variables)
        images, index, _ = next(iter(pipeline._encode_batches("test", np.arange(64), 64)))
        flops[devices] = pipeline._encode.lower(variables, images, index).compile().cost_analysis()["flops"]
    assert flops[8] < flops[1] / 6


def test_the_same_snapshots_stream_alike_on_one_and_eight_devices(alone):
    made = config()
    predictions = {}
    for devices in (1, 8):
        pipeline, objective = build(made, devices)
        snapshots = []
        for task, state in enumerate(alone):
            bare = snapshot_of(state)
            view = Stage(pipeline, task, snapshots, np.empty(0, int))
            prev = snapshots[-1] if snapshots else None
            made_task = make_task(pipeline, task)
            placed = pipeline.layout.replicate((state.trainable, state.batch_stats))
            snapshots.append(objective.finish(*placed, prev, view, made_task))
            assert bare.projector.shape == snapshots[-1].projector.shape
        scorer = Scorer("rose", METHODS["rose"], made, pipeline.layout, None)
        for task in range(2):
            stream = pipeline.scenario.stream_indices(pipeline.labels["test"], task, 0)
            outcome = scorer.score(Stage(pipeline, task, snapshots, stream))
        predictions[devices] = outcome.predictions
        assert len(outcome.predictions) == len(stream), "evaluation drops nothing"
    assert np.mean(predictions[1] == predictions[8]) >= 0.995


def test_bfloat16_encoders_keep_everything_else_float32():
    pipeline, objective = build(config("bfloat16"), 1)
    begin, step = make_begin(objective, 0), make_step(objective, pipeline.layout, 0)
    state = jax.eval_shape(begin, None, make_task(pipeline, 0))
    feed, _ = next(pipeline.feeds(0, 0, 1, lambda epoch: 0.1))
    after, terms = jax.eval_shape(step, state, None, pipeline.resident("train"), feed, make_task(pipeline, 0))
    floats = [leaf.dtype for leaf in jax.tree.leaves((after, terms)) if leaf.dtype.kind == "f"]
    assert set(floats) == {np.dtype("float32")}
    features = jax.eval_shape(
        lambda v, x: pipeline.encoder.apply(v, x)[0],
        {"params": state.trainable["encoder"], "batch_stats": state.batch_stats},
        jax.ShapeDtypeStruct((4, 8, 8, 3), np.float32),
    )
    assert features["feature"].dtype == np.float32
    assert features["layer3"].dtype == jax.numpy.bfloat16
