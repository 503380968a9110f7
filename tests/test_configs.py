"""The fourteen settings: hyper-parameters against a table typed from the paper, shapes without running."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import make_parts

from rose_jax.config import from_json, validate
from rose_jax.data import augment
from rose_jax.data.pipeline import Feed
from rose_jax.data.scenario import make_scenario
from rose_jax.data.sources import KNOWN
from rose_jax.models import make_encoder
from rose_jax.train.objectives import make_objective
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import ClassMemory, Snapshot, Task

COLD = dict(batch=128, first=(200, 0.1, (60, 120, 180), 5e-4), epochs=100, milestones=(45, 90), lr=0.05)
WARM = dict(batch=64, first=(100, 0.1, (45, 90), 5e-4))
CIFAR = dict(epochs=100, milestones=(45, 90))
OTHER = dict(epochs=50, milestones=(35, 45))
# lambda_1, lambda_2, then what the supplement says of the schedule
PAPER = {
    "cifar100_cold5": COLD | dict(kd=10, supcon=0.1, stages=5, first_task=20),
    "cifar100_cold10": COLD | dict(kd=10, supcon=0.1, stages=10, first_task=10),
    "cifar100_cold20": COLD | dict(kd=10, supcon=0.03, stages=20, first_task=5),
    "tiny_cold5": COLD | dict(kd=10, supcon=0.1, stages=5, first_task=40),
    "tiny_cold10": COLD | dict(kd=10, supcon=0.1, stages=10, first_task=20),
    "tiny_cold20": COLD | dict(kd=10, supcon=0.03, stages=20, first_task=10),
    "imagenet100_cold10": COLD | dict(kd=5, supcon=0.03, stages=10, first_task=10),
    "cifar100_warm5": WARM | CIFAR | dict(kd=10, supcon=0.1, lr=0.01, stages=6, first_task=50),
    "cifar100_warm10": WARM | CIFAR | dict(kd=10, supcon=0.1, lr=0.05, stages=11, first_task=50),
    "cifar100_warm20": WARM | CIFAR | dict(kd=10, supcon=0.03, lr=0.05, stages=21, first_task=40),
    "tiny_warm5": WARM | OTHER | dict(kd=10, supcon=0.1, lr=0.01, stages=6, first_task=100),
    "tiny_warm10": WARM | OTHER | dict(kd=10, supcon=0.1, lr=0.01, stages=11, first_task=100),
    "tiny_warm20": WARM | OTHER | dict(kd=10, supcon=0.03, lr=0.05, stages=21, first_task=100),
    "imagenet100_warm10": WARM | OTHER | dict(kd=5, supcon=0.03, lr=0.03, stages=11, first_task=50),
}


def get_config(name, arg=""):
    return validate(importlib.import_module(f"configs.{name}").get_config(arg))


def test_there_are_fourteen_the_demo_and_your_own():
    files = {path.stem for path in Path("configs").glob("*.py")} - {"__init__"}
    assert files == {*PAPER, "digits_cold5", "folder"}


@pytest.mark.parametrize("name", PAPER)
def test_hyper_parameters_are_the_paper_s(name):
    config, paper = get_config(name), PAPER[name]
    assert config.name == name
    assert config.train.batch_size == paper["batch"]
    first, later = config.train.first, config.train.later
    assert (first.epochs, first.lr, first.milestones, first.weight_decay) == paper["first"]
    assert (later.epochs, later.lr, later.milestones) == (paper["epochs"], paper["lr"], paper["milestones"])
    assert later.weight_decay == 2e-4
    assert (config.loss.kd_weight, config.loss.supcon_weight) == (paper["kd"], paper["supcon"])
    assert (config.evolution.capacity, config.evolution.alpha, config.evolution.granularity) == (3000, 0.2, 1)
    assert (config.projector.lr, config.model.width, config.train.momentum) == (1e-3, 64, 0.9)
    scenario = make_scenario(config.scenario, KNOWN[config.data.dataset].num_classes)
    assert (scenario.num_tasks, scenario.sizes[0]) == (paper["stages"], paper["first_task"])
    text = Path(f"configs/{name}.py").read_text()
    assert f"--config configs/{name}.py" in text


# What the authors of the compared methods use: (batch, first task, later tasks), each (epochs, lr, milestones, decay).
ADAM_EFC = (64, (100, 1e-3, (45, 90), 2e-4), (100, 1e-4, (), 2e-4))
ADAM_FCS = (64, (101, 1e-3, (45, 90), 2e-4), (101, 1e-3, (45, 90), 2e-4))
ADAM_SSRE = (128, (101, 1e-3, (45, 90), 2e-4), (60, 2e-4, (45,), 5e-4))
SGD_EFC = (64, (160, 0.1, (80, 120, 150), 5e-4), (100, 1e-5, (), 2e-4))
SGD_FCS = (64, (161, 0.1, (80, 120, 150), 5e-4), (61, 1e-3, (25, 50), 2e-4))
ADAM_PASS = (64, (101, 1e-3, (44, 89), 2e-4), (101, 1e-3, (44, 89), 2e-4))
SGD_PASS = (64, (160, 0.1, (80, 120, 150), 5e-4), (100, 1e-3, (45, 90), 2e-4))
PASS_IMAGES = {"cifar100": "standard", "tiny": "flip", "imagenet100": "flip"}
EFC_IMAGES = {"cifar100": ("padded_resized_crop", 4), "tiny": ("crop_flip", 8), "imagenet100": ("", 4)}


def recipe_of(recipe):
    def plain(schedule):
        return schedule.epochs, schedule.lr, schedule.milestones, schedule.weight_decay

    return recipe.batch_size, plain(recipe.first), plain(recipe.later)


@pytest.mark.parametrize("name", PAPER)
def test_hyper_parameters_of_the_compared_methods(name):
    config, dataset = get_config(name), name.split("_")[0]
    imagenet, warm = dataset == "imagenet100", "warm" in name
    efc, fcs = config.efc, config.fcs
    assert recipe_of(efc.recipe) == (SGD_EFC if imagenet else ADAM_EFC)
    assert recipe_of(fcs.recipe) == (SGD_FCS if imagenet else ADAM_FCS)
    assert efc.first_optimizer == fcs.first_optimizer == ("sgd" if imagenet else "adam")
    assert (efc.efm_weight, efc.damping, efc.sigma, efc.prototype_batch) == (10, 0.1, 0.2, 64)
    assert (efc.augment, efc.pad, efc.head_lr_factor) == (*EFC_IMAGES[dataset], 10 if imagenet else 1)
    assert (fcs.distill_weight, fcs.transfer_weight, fcs.prototype_weight, fcs.prototype_batch) == (10, 1, 10, 64)
    assert fcs.contrast_weight == (0.03 if name.endswith("20") or imagenet else 0.1)
    ssre = config.ssre  # of CIFAR-100; no others were published
    assert recipe_of(ssre.recipe) == ADAM_SSRE
    assert (ssre.augment, ssre.pad) == ("standard" if dataset == "cifar100" else "flip", 4)
    assert (ssre.temperature, ssre.distill_weight, ssre.prototype_weight, ssre.prototype_batch) == (
        0.1,
        1,
        10,
        128,
    )
    pass_, il2a = config.pass_, config.il2a
    assert recipe_of(pass_.recipe) == (SGD_PASS if imagenet else ADAM_PASS)
    assert (pass_.temperature, pass_.prototype_weight, pass_.distill_weight) == (1 if imagenet else 0.1, 10, 10)
    assert (pass_.first_optimizer, pass_.radius_of) == (("sgd", "deviation") if imagenet else ("adam", "variance"))
    assert pass_.augment == il2a.augment == PASS_IMAGES[dataset]
    assert (il2a.temperature, il2a.semantic_weight, il2a.distill_weight, il2a.gamma) == (0.1, 10, 10, 2.5)
    assert il2a.mix_range == ((0.3, 0.7) if dataset == "tiny" else (0.4, 0.6))
    if imagenet:  # IL2A's authors have none
        assert il2a.recipe.first.epochs == 0
    else:
        assert recipe_of(il2a.recipe) == (100 if dataset == "tiny" else 64, *ADAM_FCS[1:])
    if warm:  # LDC's authors have no warm start
        assert (config.lwf.schedule, config.lwf.official.first.epochs) == ("rose", 0)
    else:
        later = (100, 0.001 if dataset == "tiny" else 0.05, (45, 90), 2e-4)
        assert config.lwf.schedule == "official"
        assert recipe_of(config.lwf.official) == (128, (200, 0.1, (60, 120, 160), 5e-4), later)
    assert config.loss.expand_labels == config.lwf.expand_labels == (warm and not imagenet)
    frozen = config.frozen.recipe
    assert recipe_of(frozen)[:2] == (128, (200, 0.1, (), 5e-4))
    assert (frozen.first.decay, frozen.later.epochs, config.frozen.head) == ("cosine", 0, "cosine")
    assert (config.sdc.sigma, config.ldc.epochs, config.ldc.lr) == (0.3, 20, 1e-3)
    assert (config.adc.samples, config.adc.steps, config.adc.alpha) == (100, 3, 25)


# The ResNet once with each of its stems: tracing it takes most of the time, and what it gives has tiny's shape.
ENCODERS = [(name, "tiny") for name in PAPER] + [
    ("cifar100_warm5", "resnet18"),
    ("imagenet100_cold10", "resnet18"),
]


@pytest.mark.parametrize(("name", "encoder"), ENCODERS)
def test_every_setting_builds_and_shape_checks(name, encoder, one_device):
    """Both training programs and the encoder, by jax.eval_shape: no arithmetic."""
    config = get_config(name)
    assert config.model.encoder == "resnet18"
    spec = KNOWN[config.data.dataset]
    config.model.encoder = encoder
    encoder = make_encoder(config.model)
    normalise = augment.eval_transform(config.data.normalisation)
    transform = augment.train_transform(config.data.augment, normalise=normalise, pad=config.data.pad)
    shape = (spec.image_size, spec.image_size, 3)
    objective = make_objective("base", make_parts(config, encoder, spec.num_classes, shape, transform))
    task = Task(*(jax.ShapeDtypeStruct((), jnp.int32),) * 3, jax.ShapeDtypeStruct((), jnp.float32))
    batch, size = config.train.batch_size, spec.image_size
    feed = Feed(
        None,
        jax.ShapeDtypeStruct((batch, size, size, 3), jnp.uint8),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        jax.ShapeDtypeStruct((batch,), bool),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    lr = jax.ShapeDtypeStruct((1,), jnp.float32)
    begin, step = make_begin(objective), make_step(objective, one_device)
    state = jax.eval_shape(begin, None, task)
    after, terms = jax.eval_shape(step, state, None, None, feed, lr, task)
    assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, state)
    assert {"ce", "supcon"} <= set(terms)
    memory = ClassMemory(
        jax.ShapeDtypeStruct((spec.num_classes, encoder.feature_dim), jnp.float32),
        jax.ShapeDtypeStruct((spec.num_classes,), jnp.int32),
    )
    variables = {"params": state.trainable["encoder"], "batch_stats": state.kept}
    prev = Snapshot(variables, state.trainable["head"], state.trainable["projector"], memory, {})
    state = jax.eval_shape(begin, prev, task)
    after, terms = jax.eval_shape(step, state, prev, None, feed, lr, task)
    assert {"ce", "supcon", "kd", "projector"} <= set(terms)
    assert all(np.prod(leaf.shape) == 1 for leaf in jax.tree.leaves(terms))


@pytest.mark.parametrize("arg", ["thin", "smoke"])
@pytest.mark.parametrize("name", PAPER)
def test_every_preset_is_valid(name, arg):
    config = get_config(name, arg)
    assert config.preset == arg
    assert config.frozen.recipe.first.epochs <= 24
    assert config.frozen.recipe.later.epochs == 0
    for recipe in (config.train, *(o.recipe for o in (config.efc, config.fcs, config.pass_, config.il2a))):
        for schedule in (recipe.first, recipe.later):
            assert schedule.epochs <= 24
            assert all(0 < milestone < schedule.epochs for milestone in schedule.milestones)


@pytest.mark.parametrize("name", PAPER)
def test_the_preset_for_accelerators_is_the_full_setting(name):
    config, full = get_config(name, "tpu"), get_config(name)
    full.model.compute_dtype, full.train.steps_per_call = "bfloat16", 50
    assert config == full
    assert config.preset == "full"


def test_presets_keep_the_shape_of_the_schedule():
    thin = get_config("cifar100_cold10", "thin")
    assert (thin.train.first.epochs, thin.train.first.milestones) == (24, (7, 14, 22))
    assert (thin.train.later.epochs, thin.train.later.milestones) == (10, (4, 9))
    assert (thin.model.width, thin.data.augment, thin.preset) == (16, "standard", "thin")


@pytest.mark.parametrize("name", ["digits_cold5", "cifar100_warm20"])
def test_a_config_survives_being_written(name):
    config = get_config(name)
    assert from_json(config.to_json()) == config
