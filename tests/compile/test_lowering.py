"""Every program of every method lowers for accelerators that are not here: no operation is a CPU's alone."""

import itertools

import jax
import pytest
import tiny_run

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
        ("lwf", "dpcr"),
        ("efc",),
        ("fcs",),
        ("fecam", "fetril_fc"),
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


def test_these_are_all_objectives_and_test_time_methods():
    chosen, every = resolve(itertools.chain(*GROUPS)).values(), METHODS.values()
    assert {row.objective for row in chosen} == {row.objective for row in every}
    assert {row.test_time for row in chosen} == {row.test_time for row in every}
