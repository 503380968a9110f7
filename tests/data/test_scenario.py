"""Class orders and splits against published constants and the paper's text."""

import numpy as np
import pytest

from rose_jax.config import ScenarioOptions
from rose_jax.data.order import epoch_order
from rose_jax.data.scenario import make_scenario
from rose_jax.errors import UserError


@pytest.mark.parametrize(("classes", "start"), [(100, [68, 56, 78, 8, 23]), (200, [168, 136, 51, 9, 183])])
def test_class_order_is_the_1993_one(classes, start):
    scenario = make_scenario(ScenarioOptions(tasks=10), classes)
    assert scenario.class_order[:5].tolist() == start
    assert sorted(scenario.class_order) == list(range(classes))


@pytest.mark.parametrize(
    ("classes", "config", "sizes"),
    [
        (100, ScenarioOptions("cold", 5), [20] * 5),
        (100, ScenarioOptions("cold", 10), [10] * 10),
        (100, ScenarioOptions("cold", 20), [5] * 20),
        (200, ScenarioOptions("cold", 5), [40] * 5),
        (200, ScenarioOptions("cold", 10), [20] * 10),
        (200, ScenarioOptions("cold", 20), [10] * 20),
        (100, ScenarioOptions("warm", 5), [50] + [10] * 5),
        (100, ScenarioOptions("warm", 10), [50] + [5] * 10),
        (100, ScenarioOptions("warm", 20, 40), [40] + [3] * 20),
        (200, ScenarioOptions("warm", 5), [100] + [20] * 5),
        (200, ScenarioOptions("warm", 10), [100] + [10] * 10),
        (200, ScenarioOptions("warm", 20), [100] + [5] * 20),
        (10, ScenarioOptions(task_sizes=(1, 4, 2, 3)), [1, 4, 2, 3]),
        (11, ScenarioOptions("cold", 4), [3, 3, 3, 2]),  # ragged ones: the last have one fewer
        (12, ScenarioOptions("cold", 5), [3, 3, 2, 2, 2]),
        (100, ScenarioOptions("warm", 7, 40), [40] + [9] * 4 + [8] * 3),
    ],
)
def test_splits(classes, config, sizes):
    scenario = make_scenario(config, classes)
    assert list(scenario.sizes) == sizes
    covered = [c for task in range(scenario.num_tasks) for c in scenario.classes(task)]
    assert covered == list(range(classes))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ScenarioOptions("cold", 101), "do not split into 101 tasks of one class or more"),
        (ScenarioOptions("warm", 7, 95), "a first task of 95 and 7 tasks"),
        (ScenarioOptions(task_sizes=(50, 40)), "has 90 classes, but the data set has 100"),
        (ScenarioOptions(tasks=10, class_order=(1, 1, 2)), "each of 0..99 once"),
    ],
)
def test_a_split_that_does_not_add_up_says_so(config, words):
    with pytest.raises(UserError, match=words):
        make_scenario(config, 100)


def test_a_ragged_split_is_said(caplog):
    make_scenario(ScenarioOptions("cold", 4), 11)
    assert "11 classes do not divide into 4 tasks: these have 3, 3, 3, 2 classes." in caplog.text


def test_images_of_tasks_and_streams():
    rng = np.random.default_rng(0)
    scenario = make_scenario(ScenarioOptions(task_sizes=(3, 2, 5)), 10)
    original = rng.integers(0, 10, 400)
    labels = scenario.internal(original)
    np.testing.assert_array_equal(scenario.class_order[labels], original)
    rows = [scenario.train_indices(labels, task) for task in range(3)]
    assert sorted(np.concatenate(rows)) == list(range(400))
    for task in range(3):
        assert set(original[rows[task]]) == set(scenario.class_order[list(scenario.classes(task))])
        stream = scenario.stream_indices(labels, task, seed=0)
        assert sorted(stream) == np.flatnonzero(labels < scenario.seen(task)).tolist()
        assert stream.tolist() != sorted(stream)
        assert stream.tolist() == scenario.stream_indices(labels, task, seed=0).tolist()
        assert stream.tolist() != scenario.stream_indices(labels, task, seed=1).tolist()


def test_epoch_orders_are_addressed():
    assert epoch_order(0, 1, 2, 50).tolist() == epoch_order(0, 1, 2, 50).tolist()
    orders = {tuple(epoch_order(*address, 50)) for address in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}
    assert len(orders) == 4
