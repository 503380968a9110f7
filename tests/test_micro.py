"""The preset for two cores: steps instead of epochs, and Adam's rates by lr x steps."""

import re
from pathlib import Path

import numpy as np
import pytest

from configs import cifar100_cold10, cifar100_cold20, cifar100_warm5, tiny_cold10
from rose_jax.config import Schedule, validate
from rose_jax.data.sources import ArraySplit, Dataset
from rose_jax.errors import UserError
from rose_jax.micro import PLAIN_IMAGES, REHEARSED_STEPS, shorten, task_sizes


def steps(config, recipe):
    """Of a whole trajectory."""
    first, later, later_tasks = task_sizes(config)
    a, b = (500 * classes // recipe.batch_size for classes in (first, later))
    return recipe.first.epochs * a + later_tasks * recipe.later.epochs * b


@pytest.mark.parametrize("setting", [cifar100_cold10, cifar100_cold20, cifar100_warm5])
def test_every_trajectory_has_about_the_steps_that_fit(setting):
    config = validate(setting.get_config("micro"))
    assert (config.preset, config.model.width, config.data.pool) == ("micro", 16, 2)
    assert steps(config, config.train) == pytest.approx(PLAIN_IMAGES // config.train.batch_size, rel=0.25)
    official = [config.lwf.official] if config.lwf.schedule == "official" else []
    for recipe in (config.ssre.recipe, *official):
        assert steps(config, recipe) == pytest.approx(PLAIN_IMAGES // recipe.batch_size, rel=0.25)
    share = (
        2 if config.scenario.start == "warm" else 3
    )  # of the steps, that a frozen encoder gets: the first task's
    assert steps(config, config.frozen.recipe) == pytest.approx(PLAIN_IMAGES / 128 / share, rel=0.25)
    assert config.frozen.augment == "standard"
    assert not config.loss.expand_labels
    assert steps(config, config.efc.recipe) == pytest.approx(PLAIN_IMAGES // 64, rel=0.25)
    # What makes EFC learn its new classes: the authors' rate x steps.
    authors = setting.get_config().efc.recipe
    _, classes, _ = task_sizes(config)
    taken, published = (
        r.later.lr * r.later.epochs * (500 * classes // r.batch_size) for r in (config.efc.recipe, authors)
    )
    assert published / 2 < taken < published * 1.1
    for rehearsing in (config.pass_, config.il2a, config.fcs):
        assert steps(config, rehearsing.recipe) == pytest.approx(REHEARSED_STEPS, rel=0.25)
    assert config.fcs.prototype_batch == config.fcs.recipe.batch_size
    # Crops shift a picture of half the size half as far, and leave it its size.
    sections = (config.data, config.frozen, config.efc, config.ssre, config.pass_, config.il2a)
    assert {(section.augment, section.pad) for section in sections} == {("standard", 2)}


def test_adam_s_rates_keep_lr_times_steps_up_to_a_limit():
    slow = Schedule(100, 1e-4, (), 2e-4)
    shorten(slow, images=5000, old_batch=64, batch=64, steps=1560)
    assert slow.epochs == 20
    assert slow.lr == pytest.approx(5e-4)  # a fifth of the steps, five times the rate
    slower = Schedule(100, 1e-4, (), 2e-4)
    shorten(slower, images=5000, old_batch=64, batch=64, steps=390)
    assert slower.lr == 1e-3  # and no more than any author uses
    sgd = Schedule(200, 0.1, (60, 120, 180), 5e-4)
    shorten(sgd, images=5000, old_batch=128, batch=128, steps=39 * 20)
    assert (sgd.lr, sgd.epochs, sgd.milestones) == (0.1, 20, (6, 12, 18))


@pytest.mark.parametrize("preset", ["micro", "thin"])
@pytest.mark.parametrize(("setting", "start"), [(cifar100_cold10, "ten cold"), (cifar100_warm5, "five warm")])
def test_the_page_says_what_share_of_the_authors_learning_is_left(setting, start, preset):
    full, small = validate(setting.get_config()), validate(setting.get_config(preset))
    page = (Path(__file__).parents[1] / "docs/rows.md").read_text()
    printed = re.search(rf"\| `:{preset}`, {start} [^|]+\| (.+) \|", page)[1].split(" | ")
    recipes = (
        lambda c: c.train,
        lambda c: c.efc.recipe,
        lambda c: c.pass_.recipe,
        lambda c: c.il2a.recipe,
        lambda c: c.fcs.recipe,
        lambda c: c.ssre.recipe,
    )
    shares = [
        [round(100 * learning(small, recipe(small), k) / learning(full, recipe(full), k)) for k in (0, 1)]
        for recipe in recipes
    ]
    shares[-1][0] = shares[2][0]
    assert printed == [f"{first}, {later}" for first, later in shares]
    if start == "ten cold":
        assert shares[0] == [
            round(100 * learning(small, small.lwf.official, k) / learning(full, full.lwf.official, k))
            for k in (0, 1)
        ]


def learning(config, recipe, task):
    """The sum of learning rates over a task's steps."""
    schedule, classes = (recipe.first, recipe.later)[task], task_sizes(config)[task]
    steps = (config.data.images_per_class or 500) * classes // recipe.batch_size
    rates = [schedule.lr * 0.1 ** sum(m <= epoch for m in schedule.milestones) for epoch in range(schedule.epochs)]
    return steps * sum(rates)


def test_thin_follows_the_rule_for_adam_s_rates():
    """EFC's later tasks have a fiftieth of their epochs in half as large batches, SSRE's a sixth: both reach the limit."""
    thin = cifar100_cold10.get_config("thin")
    assert (thin.efc.recipe.later.epochs, thin.efc.recipe.later.lr) == (2, 1e-3)
    assert (thin.ssre.recipe.later.epochs, thin.ssre.recipe.later.lr) == (10, 1e-3)
    assert (thin.train.first.lr, thin.train.later.lr, thin.lwf.official.later.lr) == (0.1, 0.05, 0.05)
    assert thin.efc.prototype_batch == thin.efc.recipe.batch_size


def test_other_data_sets_are_refused():
    with pytest.raises(UserError, match=r":micro is for CIFAR-100's settings, not for tiny"):
        tiny_cold10.get_config("micro")


def test_pooled_images_are_means_of_pixels():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    split = ArraySplit(images, np.zeros(3, np.int32))
    small = Dataset("made", 1, ("a",), 4, split, split).pooled(2)
    assert small.image_size == 2
    expected = images.astype(float).reshape(3, 2, 2, 2, 2, 3).mean((2, 4))
    assert np.abs(small.train.images - expected).max() <= 0.5
    assert small.train.images.dtype == np.uint8
    with pytest.raises(UserError, match="does not divide"):
        small.pooled(3)
