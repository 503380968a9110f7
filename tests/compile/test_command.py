"""`python -m rose_jax.compile`: what it refuses, what it prints, and one compilation by the real compiler."""

import importlib.util
import json
import sys
import types

import jax
import pytest

from rose_jax.compile import __main__ as command
from rose_jax.compile import compiling, describe, table
from rose_jax.compile.compiling import Found, digest
from rose_jax.compile.hlo import parse
from rose_jax.compile.programs import Program
from rose_jax.runtime.target import Target, target, tracing_for

DIGITS = ("--config", "configs/digits_cold5.py")
CHIP = describe.Topology("v5e:1", [None], describe.CHIPS["TPU v5 lite"], "a compiler")


@pytest.fixture
def exit_code(monkeypatch):
    def call(*arguments):
        argv = ["compile", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", argv)  # ml_collections reads it
        command.FLAGS.unparse_flags()
        return command.main(argv)

    return call


def test_without_the_compiler_one_message(exit_code, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert exit_code(*DIGITS) == 2
    said = capsys.readouterr().err
    assert "no package libtpu" in said
    assert "pip install" in said


@pytest.mark.parametrize("name", ["v5e", "v5e-8", "v5e:", "v5e:2by4", "A100:1"])
def test_topologies_that_are_none(exit_code, capsys, name):
    assert exit_code(*DIGITS, f"--topology={name}") == 2
    assert "v5e" in capsys.readouterr().err


def test_a_program_that_does_not_fit_is_an_exit_code(exit_code, capsys, monkeypatch, tmp_path):
    program = Program("base: first task", None, (), Target("tpu", 1), "step", 1, 39)
    large = Found(False, 12.0, "Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm.")
    monkeypatch.setattr(describe, "describe", lambda name: CHIP)
    monkeypatch.setattr("rose_jax.runtime.sharding.DescribedLayout", lambda devices: None)
    monkeypatch.setattr("rose_jax.compile.programs.programs_of", lambda *_: [program])
    monkeypatch.setattr(compiling, "find", lambda *_: large)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    assert exit_code(*DIGITS, f"--json={tmp_path / 'found.json'}") == command.DOES_NOT_FIT
    assert "does not fit: Ran out of memory in memory space hbm" in capsys.readouterr().out
    (written,) = json.loads((tmp_path / "found.json").read_text())["programs"]
    assert (written["fits"], written["runs"]) == (False, 39)


def test_a_clock_at_which_the_matrix_units_reach_their_peak():
    assert describe.CHIPS["TPU v5 lite"].clock == pytest.approx(1.503e9, rel=1e-3)
    assert describe.CHIPS["TPU v4"].clock == pytest.approx(1.05e9, rel=1e-2)  # as published
    assert describe.CHIPS["TPU v5"].clock == pytest.approx(1.75e9, rel=1e-2)


def test_the_table_by_hand():
    """Per image of 128: 640,000 / 128 cycles; 2**30 FLOP in 640,000 cycles of 131,072."""
    program = Program("encode test", None, (), Target("tpu", 8), "image", 128)
    found = Found(
        True, 3.2, "", 10**6, 2**30, 3 * 2**30, 0, 2**30, 640_000, {"all-gather": 2}, [("norm.py", 320_000)]
    )
    lines = table.text([(program, found)], CHIP).splitlines()
    cells = [cell.strip() for cell in lines[1].split("  ") if cell.strip()]
    assert cells == [
        *("encode test (image)", "3", "1.0", "1,073.7", "3,221.2", "25.0 %", "0.008", "5.0"),
        *(f"{1e3 * 5000 / CHIP.chip.clock:.4g}", f"{100 * 2**30 / (640_000 * 131_072):.1f} %", "2 all-gather"),
    ]
    assert lines[2].strip() == "50.0 %  norm.py"
    (one,) = table.record([(program, found)], CHIP)["programs"]
    assert (one["cycles"], one["flops"]) == (5000, 2**23)


def test_settings_that_differ_in_a_weight_are_one_program():
    text = "%0 = stablehlo.constant dense<{}> : tensor<f32>\n%1 = stablehlo.constant dense<50> : tensor<i32>"
    some, other = text.format("1.000000e-01"), text.format("2.999999e-02")
    assert digest(some, CHIP) == digest(other, CHIP)
    # but not those in which a term is left out, or a loop is longer, or that another chip runs
    assert digest(some, CHIP) != digest(text.format("0.000000e+00"), CHIP)
    assert digest(some, CHIP) != digest(some.replace("<50>", "<51>"), CHIP)
    assert digest(some, CHIP) != digest(some, CHIP._replace(name="v5e:2x4"))


class Lowered:
    """As jax's, of a program that compiles to `text`, or ends with `error`."""

    def __init__(self, text="", error=None):
        self.text, self.error, self.times = text, error, 0

    def as_text(self):
        return "a program"

    def compile(self):
        self.times += 1
        if self.error:
            raise jax.errors.JaxRuntimeError(self.error)
        sizes = ("generated_code", "argument", "temp", "output", "alias")
        memory = types.SimpleNamespace(**{f"{name}_size_in_bytes": 7 for name in sizes})
        return types.SimpleNamespace(as_text=lambda: self.text, memory_analysis=lambda: memory)


ONE_FUSION = """\
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  ROOT %negate.1 = f32[8]{0:T(128)} negate(%x), backend_config={"estimated_cycles":"12"}
}
"""


def test_a_program_is_compiled_once_and_its_text_read_each_time(tmp_path, monkeypatch):
    """So that a version that counts otherwise counts the same program anew, without compiling."""
    lowered = Lowered(ONE_FUSION)
    program = types.SimpleNamespace(lower=lambda: lowered)
    first = compiling.find(program, CHIP, tmp_path)
    assert (first.fits, first.cycles, first.code) == (True, 12, 7)
    monkeypatch.setattr(compiling, "parse", lambda text: parse(text.replace('"12"', '"13"')))
    assert compiling.find(program, CHIP, tmp_path).cycles == 13
    next(tmp_path.glob("*.hlo.gz")).write_bytes(b"cut off")
    assert compiling.find(program, CHIP, tmp_path).cycles == 13
    assert lowered.times == 2  # what is broken is made again


def test_memory_that_runs_out_is_found_and_other_errors_are_not_hidden(tmp_path):
    said = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm."
    lowered = Lowered(error=said)
    found = compiling.find(types.SimpleNamespace(lower=lambda: lowered), CHIP, tmp_path)
    assert not found.fits
    assert "Used 20.00G of 15.75G hbm" in found.message
    other = Lowered(error="INTERNAL: a shape exceeds what was expected")
    with pytest.raises(jax.errors.JaxRuntimeError, match="a shape exceeds"):
        compiling.find(types.SimpleNamespace(lower=lambda: other), CHIP, tmp_path / "other")


def test_what_is_traced_for_other_devices_knows_it():
    here = target()
    with tracing_for("tpu", 8):
        assert target() == Target("tpu", 8)
    assert target() == here == Target("cpu", jax.device_count())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra [tpu]")
def test_the_smoke_programs_compile_for_a_tpu(exit_code, tmp_path, capsys):
    found = tmp_path / "found.json"
    # In float32 a norm may need a second pass, whose all-reduce stands in a branch and is counted too.
    (tmp_path / "smoke.py").write_text(
        "from configs import cifar100_cold10\n\n\ndef get_config(preset=''):\n    config = cifar100_cold10.get_config('smoke')\n"
        "    config.model.compute_dtype = 'bfloat16'\n    return config\n"
    )
    config = ("--config", tmp_path / "smoke.py", "--methods=base,rose")
    for topology, devices in (("v5e:1", 1), ("v5e:2x4", 8)):
        arguments = (*config, f"--topology={topology}", f"--cache={tmp_path}", f"--json={found}")
        assert exit_code(*arguments) == 0
        written = json.loads(found.read_text())
        programs = {program["name"]: program for program in written["programs"]}
        assert written["devices"] == devices
        assert {"base: first task", "base: later tasks", "encode train", "rose: stream"} <= set(programs)
        assert all(program["cycles"] > 0 and program["flops"] > 0 for program in programs.values())
        # As docs/scaling.md has it: a norm that needs two all-reduces, or a loss that gathers anew, would show.
        exchanged = programs["base: later tasks"]["collectives"]
        assert exchanged == ({"all-reduce": 39, "all-gather": 1} if devices == 8 else {})
        assert programs["base: first task"]["loops"] == []  # none over images
    assert "models/resnet.py" in capsys.readouterr().out
