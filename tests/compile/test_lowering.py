"""Every program of every method lowers for accelerators that are not here: no operation is a CPU's alone."""

import itertools

import jax
import pytest
import tiny_run

from rose_jax.commandline import load_config
from rose_jax.compile.programs import programs_of
from rose_jax.methods import METHODS, resolve
from rose_jax.runtime.sharding import DescribedLayout

ACCELERATORS = ("tpu", "cuda", "rocm")
# Rows of one objective; among them every objective, every test-time method and every kind of classifier.
GROUPS = (
    ("base", "rose", "gd", "gd_queue", "batch_norm", "tent", "eata", "cotta", "rose_whitened"),
    *(
        ("ttt",),
        ("ttt++",),
        ("lwf", "dpcr", "lwf+rose_ridge"),
        ("efc",),
        ("fcs",),
        ("fecam", "fecam_1", "fetril", "fetril_fc"),
        ("ssre", "pass"),
        ("il2a",),
    ),
)


@pytest.mark.parametrize("rows", GROUPS, ids="+".join)
def test_programs_lower_for_accelerators(rows):
    config = tiny_run.get_config()
    config.methods = rows
    names = []
    for program in programs_of(config, DescribedLayout(jax.devices()[:2]), "tpu"):
        names.append(program.name)
        if program.name.startswith("encode") and rows is not GROUPS[0]:
            continue  # the same for all
        exported = program.export(ACCELERATORS)
        assert exported.platforms == ACCELERATORS
        assert exported.nr_devices == 2
    assert {"encode train", "encode test"} <= set(names)
    assert any(name.endswith(": first task") for name in names)
    assert all(any(name.startswith(f"{row}: ") for name in names) for row in rows)


def test_these_are_all_objectives_test_time_methods_and_classifiers():
    chosen, every = resolve(itertools.chain(*GROUPS)).values(), METHODS.values()
    assert {row.objective for row in chosen} == {row.objective for row in every}
    assert {row.test_time for row in chosen} == {row.test_time for row in every}
    assert {row.classifier for row in chosen} >= {row.classifier for row in every}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        (
            "cifar100_cold10",
            {"data.augment": "autoaugment", "model.compute_dtype": "bfloat16", "train.steps_per_call": 2},
        ),
        ("cifar100_warm10", {"loss.expand_labels": True}),
        ("imagenet100_cold10", {}),
    ],
)
def test_programs_of_the_papers_settings_lower_for_accelerators(setting, options):
    """What the run above has not: ResNet, bfloat16, several steps a call, each data set's augmentation, rotations and
    mixtures as classes, images that are streamed."""
    config = load_config(f"configs/{setting}.py:smoke")
    config.methods = ("base",)
    for key, value in options.items():
        section, name = key.split(".")
        assert hasattr(getattr(config, section), name)
        setattr(getattr(config, section), name, value)
    for program in programs_of(config, DescribedLayout(jax.devices()[:2]), "tpu"):
        assert program.export(ACCELERATORS).platforms == ACCELERATORS
