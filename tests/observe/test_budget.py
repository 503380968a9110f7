"""The paper budget against the real model, published figures and sums done by hand; and the page against it."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import make_parts

from rose_jax import evolution
from rose_jax.models import resnet
from rose_jax.train.objectives import make_objective
from rose_jax.train.step import make_begin
from rose_jax.types import Task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def budget():
    spec = importlib.util.spec_from_file_location("budget", ROOT / "scripts" / "budget.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def num_bytes(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def convolution_macs(jaxpr) -> int:
    """Multiply-adds of the convolutions that the model's own trace holds."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape  # [h, w, inputs, outputs]
            total += int(np.prod(kernel[:3])) * equation.outvars[0].aval.size
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += convolution_macs(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize(("stem", "size"), [("small", 32), ("conv3_pool", 224), ("conv7_pool", 224)])
def test_the_counted_network_is_the_real_one(budget, stem, size):
    network, encoder = budget.resnet18(64, stem, size), resnet.resnet18(64, stem)
    image = jnp.zeros((size, size, 3))
    shapes = jax.eval_shape(encoder.init, jax.random.key(0), image)
    assert num_bytes(shapes["params"]) == 4 * network.parameters
    assert num_bytes(shapes["batch_stats"]) == 4 * network.statistics
    traced = jax.make_jaxpr(encoder.apply)(shapes, jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32))
    assert convolution_macs(traced.jaxpr) == network.macs


def test_published_sizes(budget):
    torchvision = budget.resnet18(64, "conv7_pool", 224)
    assert torchvision.parameters == 11_689_512 - 513_000  # less the 1000-way classifier
    assert torchvision.macs == pytest.approx(1.814e9, rel=1e-3)
    assert budget.resnet18(64, "small", 32).macs == pytest.approx(0.56e9, rel=1e-2)


def test_steps_by_hand(budget):
    def steps(name):
        setting = budget.load(name)
        return sum(setting.steps(task) for task in range(setting.scenario.num_tasks))

    assert steps("cifar100_cold10") == (200 + 9 * 100) * (5000 // 128)
    assert steps("tiny_warm20") == 100 * (50_000 // 64) + 20 * 50 * (2500 // 64)
    assert len(budget.SETTINGS) == 14


def test_state_is_what_training_and_evolution_hold(budget):
    setting = budget.load("cifar100_cold10")
    parts = make_parts(setting.config, resnet.resnet18(64, "small"), 100, (32, 32, 3))
    objective = make_objective("base", parts)
    task = Task(jnp.int32(0), jnp.int32(0), jnp.int32(10), jnp.float32(0))
    state = jax.eval_shape(make_begin(objective), None, task)
    assert setting.checkpoint_bytes()[1] == pytest.approx(num_bytes(state), rel=5e-3)

    table, flags, square = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((100, 512), (100,), (512, 512)))
    flags = jax.ShapeDtypeStruct(flags.shape, bool)
    key = jax.eval_shape(lambda: jax.random.key(0))
    queue = jax.eval_shape(evolution.rose(capacity=3000).init, table, flags, flags, square, key)
    assert setting.queue_bytes() == pytest.approx(num_bytes(queue), rel=1e-3)


def test_a_step_by_hand(budget):
    setting, chip = budget.load("cifar100_cold10"), budget.Device(1e12, 1e9, 1e11, 1e10)
    computing = 4 * 2 * setting.network.macs * 128 / (8 * 0.5 * 1e12)
    megabytes = 4 * 11_168_832
    reduce, norms, update = 2 * 7 / 8 * megabytes / 1e10, 80 * budget.COLLECTIVE_SECONDS, 5 * megabytes / 1e11
    assert budget.step_seconds(setting, 1, chip, 8, 0.5) == pytest.approx(computing + reduce + norms + update)
    alone = 3 * 2 * setting.network.macs * 128 / (0.5 * 1e12) + update
    assert budget.step_seconds(setting, 0, chip, 1, 0.5) == pytest.approx(alone)


def test_the_page_has_the_tables_that_the_command_prints(budget):
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert budget.update(page, budget.tables()) == page, "run: python scripts/budget.py --update docs/scaling.md"
