"""Rows by name, schedules, executables, the post-task passes over D_t: what the methods share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_encoder as tiny
import tiny_run
from PIL import Image
from support import FakeStage, make_parts, unpainted

from configs import cifar100_cold10, imagenet100_warm10, tiny_warm5
from rose_jax import experiment
from rose_jax.classifiers import CLASSIFIERS
from rose_jax.config import Config, validate
from rose_jax.data.augment import resize, views
from rose_jax.data.augment.geometry import Box
from rose_jax.data.pipeline import Images, TrainingBatches
from rose_jax.data.scenario import make_scenario
from rose_jax.data.sources import ArraySplit, Dataset
from rose_jax.errors import UserError
from rose_jax.methods import METHODS, Row, resolve
from rose_jax.models.tiny import tiny as tiny_net
from rose_jax.run.features import Features
from rose_jax.run.stage import Stage
from rose_jax.runtime.programs import Programs
from rose_jax.runtime.sharding import Layout
from rose_jax.train.loop import make_task
from rose_jax.train.objectives import OBJECTIVES, make_objective
from rose_jax.train.schedule import learning_rate
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import ClassMemory, Snapshot, Task

SIZES = (3, 2, 1)  # tasks of different size run the same program


def test_names():
    rows = resolve(["lwf", "efc+rose", "fcs+gd"])
    assert rows["efc+rose"] == Row("efc", "projector", "rose", "ncm", "ours")
    assert rows["fcs+gd"].test_time == "gd"
    assert resolve(["fcs+projector"])["fcs+projector"] == Row("fcs", "projector", "none", "ncm", "ours")
    with pytest.raises(UserError, match=r"lwf\+rose"):
        resolve(["lwf+rosé"])


def test_rows_need_no_trajectory_beyond_one_for_each_objective():
    rows = resolve([*METHODS, "lwf+rose", "efc+rose", "fcs+rose"])
    assert {row.objective for row in rows.values()} == set(OBJECTIVES)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_nearest_prototype(distance):
    rng = np.random.default_rng(0)
    mean, feature = rng.standard_normal((6, 4)), rng.standard_normal((50, 4))
    memory = ClassMemory(jnp.asarray(mean, jnp.float32), jnp.array([0, 0, 1, 1, -1, -1]))
    config = Config()
    config.test.distance = distance
    classifier = CLASSIFIERS["ncm"].make(make_parts(config, None, 6, tiny.SHAPE))
    scores = np.asarray(classifier.logits({}, memory, jnp.asarray(feature, jnp.float32)))
    if distance == "cosine":
        far = 1 - tiny.unit(feature) @ tiny.unit(mean).T
    else:
        far = np.square(feature[:, None] - mean[None]).sum(-1)
    np.testing.assert_array_equal(scores.argmax(1), far[:, :4].argmin(1))
    assert np.all(np.isneginf(scores[:, 4:]))
    assert classifier.scored_by_evolution == (distance == "cosine"), "an evolution knows only the cosine by itself"


def test_expanded_heads_are_read_at_their_upright_outputs():
    head = {"weight": jnp.arange(24.0).reshape(12, 2), "bias": jnp.zeros(12)}
    memory = ClassMemory(jnp.zeros((3, 2)), jnp.array([0, 0, -1]))
    logits = (
        CLASSIFIERS["head"]
        .make(make_parts(Config(), None, 100, tiny.SHAPE))
        .logits(head, memory, jnp.ones((1, 2)))
    )
    np.testing.assert_array_equal(logits, [[1, 17, -np.inf]])  # rows 0 and 4 of the head


@pytest.mark.parametrize("name", ["pass", "il2a", "ssre"])
def test_prototypes_are_of_images_under_the_method_s_own_augmentation(name):
    config = Config()
    config.scenario.task_sizes = (3, 2)
    options = {"pass": config.pass_, "il2a": config.il2a, "ssre": config.ssre}[name]
    options.augment = "none"
    shape = (8, 8, 3)
    own = make_parts(config, tiny_net(1), 5, shape, lambda key, images: images * jnp.nan)  # the setting's
    made = make_objective(name, own)
    task = Task(jnp.int32(0), jnp.int32(0), jnp.int32(3), jnp.float32(0))
    trainable, kept = made.begin(jax.random.key(0), None, task)
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), dtype=np.uint8)
    encode = lambda variables, shown: own.encoder.apply(variables, jnp.float32(shown))[0]["feature"]  # noqa: E731
    view = FakeStage(0, images=images.astype(np.float32), labels=np.arange(6) % 3, encode=encode)
    made.finish(trainable, kept, None, view, task)
    np.testing.assert_array_equal(view.transform(jax.random.key(1), images), own.normalise(images))


# Schedules.


def lwf_train(config):
    classes = 200 if config.data.dataset == "tiny" else 100
    return make_objective("lwf", make_parts(config, tiny.encoder(), classes, tiny.SHAPE)).train


def test_lwf_schedules():
    config = cifar100_cold10.get_config()
    train = lwf_train(config)
    scenario = make_scenario(config.scenario, 100)
    assert (train.batch_size, train.first.milestones) == (128, (60, 120, 160))
    assert learning_rate(train, scenario, 3, 50) == pytest.approx(0.005)  # not adapted to the task's size
    config.lwf.schedule = "rose"
    assert lwf_train(config) is None  # RoSE's own
    warm = tiny_warm5.get_config()
    warm.lwf.schedule = "official"
    with pytest.raises(UserError, match="no schedule for tiny, warm"):
        lwf_train(warm)


def test_warm_start_expands_labels_on_cifar_and_tiny_only():
    assert tiny_warm5.get_config().loss.expand_labels
    assert not imagenet100_warm10.get_config().loss.expand_labels
    assert not cifar100_cold10.get_config().loss.expand_labels
    assert imagenet100_warm10.get_config().fcs.contrast_weight == 0.03


# Executables.


def small_features(layout, images_per_class=6) -> Features:
    config = Config()
    config.scenario.task_sizes = SIZES
    config.loss.expand_labels = True
    sections = (config.efc, config.fcs, config.frozen, config.pass_, config.il2a)
    for recipe in (config.train, *(options.recipe for options in sections)):
        recipe.batch_size = 4
    config.efc.prototype_batch = config.fcs.prototype_batch = 4
    config.ssre.recipe.batch_size = config.ssre.prototype_batch = 4
    labels = np.tile(np.arange(6), images_per_class).astype(np.int32)
    rng = np.random.default_rng(0)
    split = ArraySplit(rng.integers(0, 256, (len(labels), *tiny.SHAPE), dtype=np.uint8), labels)
    dataset = Dataset("small", 6, tuple("abcdef"), tiny.SHAPE[0], split, split)
    parts = make_parts(config, tiny.encoder(), 6, tiny.SHAPE)
    return Features(Images(dataset, parts.scenario, layout, 0, 0), parts)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_programs_per_objective(name, devices, monkeypatch):
    """Whatever the number of tasks, their sizes, and the batches that an objective keeps."""
    monkeypatch.setattr(views, "second_view", lambda key, images: images)  # half a minute to compile
    monkeypatch.setattr(views, "simclr_pair", lambda key, images: jnp.repeat(images, 2, axis=0))
    if devices == 8 and name != "efc":  # the only one that keeps a batch
        pytest.skip("covered on one device")
    features = small_features(Layout(jax.devices()[:devices]))
    if name in ("ssre", "base_rotation"):  # they need convolutions
        features = Features(features.images, features.parts._replace(encoder=tiny_net(1)))
    if name in ("base_rotation", "base_simclr"):  # of base itself there is a test with expanded labels
        features.parts.config.loss.expand_labels = False
    images, layout = features.images, features.images.layout
    objective = make_objective(name, features.parts)
    batches = TrainingBatches(images, objective.train or features.parts.config.train)
    begin, step, programs = make_begin(objective), make_step(objective, layout), Programs()
    lr, prev = layout.replicate(np.full(1, 1e-3, np.float32)), None
    for index in range(3):
        task = make_task(images, 2e-4, index)
        state = layout.replicate(begin(prev, task))
        for feed, _ in batches.feeds(index, 0, 2):
            args = (state, prev, images.resident("train"), feed, lr, task)
            # An executable refuses arguments of any other shape or placement than those it was compiled for.
            run = programs.compiled("later" if prev else "first", step, *args)
            with jax.transfer_guard("disallow"):  # all that a step reads is on the devices already
                state, terms = run(*args)
        assert all(np.isfinite(value) for value in terms.values())
        assert ("projector" in terms) == (index > 0 and name != "frozen")
        view = Stage(features, index, [], np.empty(0, int), batches.options.batch_size)
        snapshot = objective.finish(state.trainable, state.kept, prev, view, task)
        assert isinstance(snapshot, Snapshot)
        seen = np.asarray(snapshot.memory.origin)
        assert np.all(seen[images.scenario.offset(index) : images.scenario.seen(index)] == index)
        assert snapshot.projector.shape == (features.parts.encoder.feature_dim,) * 2
        prev = layout.replicate(snapshot)
    assert len(programs) == 2


# Passes over D_t after its training.


def test_augmented_passes_see_every_image_once_and_repeat_themselves():
    features = small_features(Layout(jax.devices()[:8]), images_per_class=7)  # 21 in batches of 4, padded to 8
    key = jax.random.key(3)
    passes = [list(features.augmented(0, key, 2, 4)) for _ in range(2)]
    for first, second in zip(*passes, strict=True):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)
    batches = passes[0]
    assert len(batches) == 12
    assert all(images.shape == (8, *tiny.SHAPE) for images, _, _ in batches)
    images = features.images
    wanted = np.asarray(images.splits["train"].images[images.of_task(0)], np.float32) / 255
    for epoch in range(2):
        seen = [np.asarray(i)[np.asarray(m)] for i, _, m in batches[6 * epoch : 6 * epoch + 6]]
        rows = np.concatenate(seen).reshape(21, -1)
        order = np.lexsort(rows.T), np.lexsort(wanted.reshape(21, -1).T)
        np.testing.assert_allclose(rows[order[0]], wanted.reshape(21, -1)[order[1]], atol=1e-6)
    assert not np.array_equal(batches[0][1], batches[6][1])  # another order in the second epoch


@pytest.mark.parametrize("box", [(3, 1, 5, 7), (0, 0, 14, 14), (2, 4, 11, 9), (13, 13, 1, 1)])
def test_resized_crop_is_pillow_s(box):
    image = np.random.default_rng(0).integers(0, 256, (14, 14, 3), dtype=np.uint8)
    top, left, height, width = box
    expected = Image.fromarray(image).crop((left, top, left + width, top + height)).resize((10, 10), 2)
    boxes = Box(*(jnp.array([v], jnp.int32) for v in box))
    got = resize.resized_crop(jnp.asarray(image)[None], boxes, 10)[0]
    assert np.abs(np.asarray(got, int) - np.asarray(expected, int)).max() <= 1  # Pillow's weights are fixed-point


@pytest.mark.slow
def test_rows_by_composition_run(tmp_path, one_device):
    """RoSE, its metric and methods that adapt the network, on encoders that were not made for them."""
    config = tiny_run.get_config()
    rows = [
        f"{name}{end}" for name in ("pass", "il2a", "ssre") for end in ("_whitened", "+rose", "+rose_whitened")
    ]
    config.methods = (*rows, "lwf+tent", "pass+eata", "frozen+cotta", "frozen+rose", "frozen+base")
    for recipe in (config.pass_.recipe, config.il2a.recipe, config.ssre.recipe, config.frozen.recipe):
        recipe.first.epochs, recipe.first.milestones = 2, ()
        recipe.later.milestones = ()
        recipe.later.epochs = min(recipe.later.epochs, 1)
    config.lwf.official.first.epochs = config.lwf.official.later.epochs = 1
    with unpainted():
        scores = experiment.run(validate(config), tmp_path, layout=one_device)["scores"]
    assert set(scores) == set(config.methods)
    for name, score in scores.items():
        assert len(score["per_stage"]) == 3
        assert np.isfinite(score["per_stage"]).all(), name
    # A frozen encoder does not drift: RoSE changes nothing.
    np.testing.assert_allclose(scores["frozen+rose"]["per_stage"], scores["frozen+base"]["per_stage"], atol=1e-9)
