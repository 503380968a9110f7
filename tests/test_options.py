"""Every option says what it is and what is allowed, and is held to it."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest

from rose_jax import config as config_lib
from rose_jax.config import FREE_KEYS, Config, from_json, get, keys, validate
from rose_jax.errors import UserError
from rose_jax.options import check, declared, option, section

DECLARED = declared(Config())
FLOATS = [key for key, item in DECLARED.items() if item.kind is float]
INTEGERS = [key for key, item in DECLARED.items() if item.kind is int]
TUPLES = [key for key, item in DECLARED.items() if item.kind == tuple[int, ...]]
CHOICES = [key for key, item in DECLARED.items() if item.option.choices]
# Beside nan and inf: what a float may not be.
ANY_FINITE = {"evolution.ridge"}
NOT_ZERO = {
    key for key in FLOATS if key.endswith(("sigma", "temperature", "dpcr.gamma", "fecam.beta", "svm_c", "svm_tol"))
} | {"testtime.largest_scale"}
BELOW_ONE = {"dpcr.threshold", *(key for key in FLOATS if key.endswith(".momentum"))}
UP_TO_ONE = {"metric.per_class_weight", "fecam.beta", "cotta.teacher", "cotta.restore", "cotta.confidence"}
MAY_BE_ZERO = {  # of the integers
    *("seed", "data.pad", "data.images_per_class", "data.size", "data.decode_workers", "efc.pad", "ssre.pad"),
    *("frozen.pad", "model.enlarge"),
    *("pass_.pad", "il2a.pad", "il2a.recipe.first.epochs"),
    *("scenario.first_classes", "scenario.class_order_seed", "train.checkpoint_every", "metric.refresh"),
    *("lwf.official.first.epochs", "dpcr.refresh", "frozen.recipe.later.epochs", "simclr.hidden"),
}
ONLY_ZERO = {"frozen.recipe.later.epochs"}


def with_value(key, value):
    config = Config(scenario=config_lib.ScenarioOptions(start="warm"))  # which first_classes needs
    *path, last = key.split(".")
    if last == "milestones":
        get(config, ".".join(path)).decay = "milestones"  # a cosine has none
    setattr(get(config, ".".join(path)) if path else config, last, value)
    return config


def refused(key, value):
    """Whether validate refuses it; a refusal must name the key and the value."""
    said = ""
    try:
        validate(with_value(key, value))
    except UserError as error:
        said = str(error)
    assert not said or f"config.{key} is {value!r}; it must be " in said
    return bool(said)


@pytest.mark.parametrize("key", FLOATS)
def test_a_float_is_finite_and_in_its_range(key):
    assert all(refused(key, value) for value in (math.nan, math.inf, -math.inf))
    assert refused(key, -1.0) == (key not in ANY_FINITE)
    assert refused(key, 0.0) == refused(key, 0) == (key in NOT_ZERO)
    assert refused(key, 1.0) == (key in BELOW_ONE)
    assert refused(key, 2.0) == (key in BELOW_ONE | UP_TO_ONE)
    assert all(refused(key, value) for value in ("0.5", True, None, (0.5,), 10**400))


@pytest.mark.parametrize("key", INTEGERS)
def test_an_integer_is_in_its_range(key):
    assert refused(key, -1)
    assert refused(key, 0) == (key not in MAY_BE_ZERO)
    assert refused(key, 1) == (key in ONLY_ZERO)
    assert all(refused(key, value) for value in ("1", 1.0, True, None))


@pytest.mark.parametrize("key", ["seed", "scenario.class_order_seed"])
def test_a_seed_has_32_bits(key):
    assert not refused(key, 2**32 - 1)
    assert refused(key, 2**32)


@pytest.mark.parametrize("key", TUPLES)
def test_a_tuple_of_integers(key):
    assert not refused(key, ())
    assert not refused(key, (2, 3))
    assert not refused(key, [2, 3])
    assert refused(key, (0, 3)) == (key != "scenario.class_order")
    assert refused(key, (3, 2)) == refused(key, (3, 3)) == key.endswith("milestones")
    assert all(refused(key, value) for value in (3, "23", (2.0,), ("2",), (-1,)))


@pytest.mark.parametrize("key", CHOICES)
def test_a_choice_names_the_nearest(key):
    choices, default = DECLARED[key].option.choices, DECLARED[key].value
    assert default in choices
    for choice in filter(None, choices):
        with pytest.raises(UserError) as error:
            validate(with_value(key, choice + "_"))
        assert f"value of config.{key} '{choice}_'. Did you mean '{choice}'? Known: " in str(error.value)
        assert all(other in str(error.value) for other in choices)
    assert refused(key, 1)


@pytest.mark.parametrize("key", [key for key, item in DECLARED.items() if item.kind is bool])
def test_a_truth_value(key):
    assert not refused(key, True)
    assert all(refused(key, value) for value in (1, "True", None))


def test_every_field_is_explained():
    classes = [
        cls
        for cls in vars(config_lib).values()
        if dataclasses.is_dataclass(cls) and cls.__module__ == config_lib.__name__
    ]
    assert len(classes) > 15
    for item in (item for cls in classes for item in dataclasses.fields(cls)):
        help = item.metadata["option"].help if "option" in item.metadata else item.metadata["help"]
        assert help
        assert "\n" not in help


def test_a_field_without_a_declaration_is_noticed():
    @dataclasses.dataclass
    class Careless:
        size: int = 3

    with pytest.raises(TypeError, match="Careless.size must be declared"):
        check(Careless())


def test_a_section_inside_a_section():
    @dataclasses.dataclass
    class Inner:
        names: tuple[str, ...] = option(("a",), "some names")
        share: float = option(0.5, "of the whole", above=0, at_most=1)

    @dataclasses.dataclass
    class Outer:
        inner: Inner = section(Inner, "what is inside")

    outer = Outer()
    check(outer)
    assert keys(outer) == ["inner.names", "inner.share"]
    outer.inner.share = 0
    with pytest.raises(
        UserError, match=r"config.inner.share is 0; it must be a finite number, above 0 and at most 1 \(of the"
    ):
        check(outer)
    outer.inner = 7
    with pytest.raises(UserError, match=r"config.inner is 7; it must be Inner\(\.\.\.\)"):
        check(outer)


def test_keys_that_change_no_number():
    assert set(FREE_KEYS) == {
        *("methods", "note", "preset"),
        *("data.dir", "data.decode_workers", "train.log_every", "train.checkpoint_every"),
    }


def test_choices_are_what_the_tables_hold():
    from rose_jax.data import augment
    from rose_jax.evolution import SOLVERS
    from rose_jax.evolution.gd import INITS
    from rose_jax.models.resnet import STEMS

    tables = {
        "data.augment": augment.TRAIN,
        "data.normalisation": (*augment.NORMALISATION, "measured"),
        "model.stem": (*STEMS, "by_size"),
        "efc.augment": ("", *augment.TRAIN),
        "evolution.solver": SOLVERS,
        "evolution.gd_init": INITS,
    }
    for key, table in tables.items():
        assert set(DECLARED[key].option.choices) == set(table), key


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (
            {"train": {"batch_size": "64"}},
            "config.train.batch_size is '64'; it must be a whole number, at least 1",
        ),
        ({"seed": 1.5}, "config.seed is 1.5; it must be a whole number"),
        ({"methods": "rose"}, "config.methods is 'rose'; it must be a tuple of texts"),
        (
            {"efc": {"recipe": {"first": {"milestones": ["1"]}}}},
            "config.efc.recipe.first.milestones is .*whole numbers",
        ),
        ({"model": {"head": None}}, "config.model.head is None; it must be one of cosine, linear"),
        ({"train": {"first": 3}}, "config.train.first is 3; it must be an object"),
        ([], r"config is \[\]; it must be an object"),
    ],
)
def test_a_saved_value_of_the_wrong_type(saved, words):
    with pytest.raises(UserError, match=words):
        from_json(json.dumps(saved))


def test_a_run_whose_config_has_a_wrong_type_is_named(tmp_path):
    from rose_jax.experiment import open_run

    (tmp_path / "config.json").write_text('{"seed": "one"}')
    words = "config.json is not the config of a run .config.seed is 'one'; it must be a whole number"
    with pytest.raises(UserError, match=words), open_run(tmp_path):
        pass


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"evolution.granularity": 3},
            "config.test.batch_size 128 must be a multiple of config.evolution.granularity 3",
        ),
        (
            {"scenario.start": "cold", "scenario.first_classes": 5},
            "config.scenario.first_classes is for warm start",
        ),
        ({"metric.per_class_weight": 0.1, "metric.source": "newest"}, "needs config.metric.source evolved"),
        ({"model.compute_dtype": "float64"}, "config.model.compute_dtype float64 needs .*JAX_ENABLE_X64"),
    ],
)
def test_options_that_do_not_go_together(values, words):
    config = Config()
    for key, value in values.items():
        path, _, last = key.rpartition(".")
        setattr(get(config, path), last, value)
    with pytest.raises(UserError, match=words):
        validate(config)


OVERRIDES = {
    "evolution.alpha": ("0.02", 0.02),
    "train.first.milestones": ("(4, 8)", (4, 8)),
    "train.later.milestones": ("()", ()),
    "scenario.task_sizes": ("(5,5)", (5, 5)),
    "efc.recipe.later.lr": ("1", 1.0),
    "loss.second_view": ("False", False),
    "model.encoder": ("tiny", "tiny"),
}
PRINT = """
from absl import app
from rose_jax import main
def show(argv): print(main._CONFIG.value.to_json())
app.run(show, flags_parser=main._parse)
"""


def test_the_command_line_sets_nested_keys_and_tuples():
    given = [f"--config.{key}={text}" for key, (text, _) in OVERRIDES.items()]
    command = [sys.executable, "-c", PRINT, "--config", "configs/digits_cold5.py", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    config = validate(from_json(done.stdout))
    assert {key: get(config, key) for key in OVERRIDES} == {key: value for key, (_, value) in OVERRIDES.items()}
