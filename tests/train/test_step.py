"""One training step against hand-written updates: torch's SGD with L2 in the gradient, Adam for the projector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import FakeStage, make_parts

from rose_jax.config import Config, Schedule
from rose_jax.data.pipeline import Feed
from rose_jax.data.resident import flatten
from rose_jax.data.scenario import Scenario
from rose_jax.models.tiny import tiny
from rose_jax.train.objectives import make_objective
from rose_jax.train.schedule import learning_rate
from rose_jax.train.start import class_means
from rose_jax.train.step import TrainState, make_begin, make_step
from rose_jax.types import ClassMemory, Snapshot, Task

CLASSES, SIZE = 6, 8


def task(index, offset, n_new, weight_decay=2e-4):
    return Task(*(jnp.int32(x) for x in (index, offset, n_new)), jnp.float32(weight_decay))


@pytest.fixture(scope="module")
def parts():
    config = Config()
    config.scenario.tasks = 3
    encoder = tiny(width=2)
    objective = make_objective("base", make_parts(config, encoder, CLASSES, (SIZE, SIZE, 3)))
    return config, encoder, objective


def snapshot(state: TrainState, dim: int) -> Snapshot:
    variables = {"params": state.trainable["encoder"], "batch_stats": state.kept}
    memory = ClassMemory(jnp.zeros((CLASSES, dim)), jnp.full(CLASSES, -1))
    return Snapshot(variables, state.trainable["head"], state.trainable["projector"], memory, {})


def feed(rng, n=16, low=2, high=4):
    images = rng.integers(0, 256, (n, SIZE, SIZE, 3)).astype(np.uint8)
    labels = rng.integers(low, high, n).astype(np.int32)
    return Feed(None, images, labels, np.ones(n, bool), np.int32(1))


def test_update_is_sgd_with_l2_and_adam_for_the_projector(parts, one_device):
    config, encoder, objective = parts
    rng = np.random.default_rng(0)
    first = make_begin(objective)(None, task(0, 0, 2))
    prev = snapshot(first, encoder.feature_dim)
    now = task(1, 2, 2)
    state = make_begin(objective)(prev, now)
    step = make_step(objective, one_device)

    def loss(trainable, stats, batch):
        made = objective.batch(jax.random.key(0), batch.images, batch.labels, batch.mask, now)
        return objective.loss(trainable, stats, prev, made, now, jax.random.key(0))[0]

    gradient_of = jax.jit(jax.grad(loss))
    values, momentum = (
        jax.device_get(state.trainable),
        jax.tree.map(np.zeros_like, jax.device_get(state.trainable)),
    )
    first_moment = second_moment = np.zeros((encoder.feature_dim,) * 2)
    for number in (1, 2):
        batch = feed(rng)
        gradient = jax.device_get(gradient_of(values, state.kept, batch))
        for part in ("encoder", "head"):
            decayed = jax.tree.map(lambda g, p: g + 2e-4 * p, gradient[part], values[part])
            momentum[part] = jax.tree.map(lambda m, g: 0.9 * m + g, momentum[part], decayed)
            values[part] = jax.tree.map(lambda p, m: p - 0.05 * m, values[part], momentum[part])
        g = gradient["projector"]
        first_moment = 0.9 * first_moment + 0.1 * g
        second_moment = 0.999 * second_moment + 0.001 * g**2
        values["projector"] = values["projector"] - 1e-3 * (first_moment / (1 - 0.9**number)) / (
            np.sqrt(second_moment / (1 - 0.999**number)) + 1e-8
        )
        state, _ = step(state, prev, None, batch, np.array([0.05], np.float32), now)
        for expected, actual in zip(jax.tree.leaves(values), jax.tree.leaves(state.trainable), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-6)
    assert int(state.step) == 2


def test_begin_keeps_old_rows_and_renews_the_others(parts):
    _, encoder, objective = parts
    first = make_begin(objective)(None, task(0, 0, 2))
    prev = snapshot(first, encoder.feature_dim)
    prev = prev._replace(head=prev.head | {"weight": prev.head["weight"] * 0, "scale": jnp.float32(7)})
    state = make_begin(objective)(prev, task(1, 2, 2))
    head = state.trainable["head"]
    assert not np.any(head["weight"][:2])
    assert (np.abs(head["weight"][2:]).sum(1) > 0).all()
    assert np.abs(head["weight"]).max() <= encoder.feature_dim**-0.5
    assert head["scale"] == 7
    np.testing.assert_array_equal(state.trainable["projector"], np.eye(encoder.feature_dim))
    for a, b in zip(
        jax.tree.leaves(state.trainable["encoder"]), jax.tree.leaves(prev.variables["params"]), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_several_steps_in_one_call_equal_single_ones(parts, one_device):
    """steps_per_call only changes how often the host is asked; rounding of the loop body aside."""
    _, _, objective = parts
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (40, SIZE, SIZE, 3)).astype(np.uint8)
    data = {"images": jnp.asarray(flatten(images)), "labels": jnp.asarray(rng.integers(0, 2, 40).astype(np.int32))}
    rows = rng.integers(0, 40, (3, 4)).astype(np.int32)
    mask, now = np.ones(4, bool), task(0, 0, 2)
    step = make_step(objective, one_device)
    together = make_begin(objective)(None, now)
    lr = np.full(3, 0.01, np.float32)
    together, _ = step(together, None, data, Feed(rows, None, None, mask, np.int32(2)), lr, now)
    single = make_begin(objective)(None, now)
    for i in range(2):
        single, _ = step(single, None, data, Feed(rows[i : i + 1], None, None, mask, np.int32(1)), lr[:1], now)
    assert int(together.step) == int(single.step) == 2
    for a, b in zip(jax.tree.leaves(together.trainable), jax.tree.leaves(single.trainable), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_learning_rates_of_the_paper():
    """Cold start: 0.1 x 0.1 at 60/120/180; later 0.05 |C_t| / |C_1:t-1| x 0.1 at 45/90."""
    config = Config().train
    config.first = Schedule(200, 0.1, (60, 120, 180), 5e-4)
    config.later = Schedule(100, 0.05, (45, 90), 2e-4)
    scenario = Scenario(np.arange(100), (10,) * 10)
    for epoch, expected in [(0, 0.1), (59, 0.1), (60, 0.01), (119, 0.01), (120, 1e-3), (180, 1e-4), (199, 1e-4)]:
        assert learning_rate(config, scenario, 0, epoch) == pytest.approx(expected)
    for number, epoch, expected in [
        (1, 0, 0.05),
        (1, 45, 0.005),
        (2, 0, 0.025),
        (9, 0, 0.05 / 9),
        (9, 95, 0.05 / 900),
    ]:
        assert learning_rate(config, scenario, number, epoch) == pytest.approx(expected)
    config.adapt_lr = False
    assert learning_rate(config, scenario, 9, 0) == pytest.approx(0.05)


def test_new_prototypes_are_class_means():
    features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    labels = np.array([2, 3, 2, 3, 3, 2, 2, 2, 3])

    view = FakeStage(1, images=features, labels=labels, encode=lambda variables, images: images)
    memory = class_means(view, None, CLASSES, 1)
    assert memory.origin.tolist() == [-1, -1, 1, 1, -1, -1]
    np.testing.assert_allclose(memory.mean[2], features[labels == 2].mean(0), rtol=1e-5)
    np.testing.assert_allclose(memory.mean[3], features[labels == 3].mean(0), rtol=1e-5)
