"""The command line of a run: every mistake is one message and exit code 2, every option can be found."""

import math
import shlex
from pathlib import Path

import pytest
from support import exit_code

from configs import folder
from configs.digits_cold5 import get_config
from rose_jax import commandline, experiment
from rose_jax.config import Config, validate
from rose_jax.errors import UserError
from rose_jax.options import declared, get, put, sections
from rose_jax.runtime.places import default_workdir

DIGITS = ("--config", "configs/digits_cold5.py")
FLOATS = [key for key, item in declared(Config()).items() if item.kind in (float, tuple[float, ...])]


@pytest.fixture
def started(monkeypatch):
    """(config, workdir) of every run that was begun; none is."""
    runs = []
    monkeypatch.setattr(experiment, "run", lambda config, workdir, **rest: runs.append((config, Path(workdir))))
    return runs


@pytest.fixture
def refused(started, capsys, tmp_path, monkeypatch):
    """The one message of a command that ends with exit code 2 and leaves nothing behind."""
    here = Path.cwd()

    def refuse(*arguments):
        monkeypatch.chdir(tmp_path)  # where a default workdir would be made
        before = sorted(tmp_path.rglob("*"))
        given = [str(here / word) if word.startswith("configs/") else word for word in arguments]
        assert exit_code(*given) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert "Traceback" not in said
        assert started == []
        assert sorted(tmp_path.rglob("*")) == before
        return said.removeprefix("error: ")

    return refuse


@pytest.mark.parametrize("key", FLOATS)
def test_any_float_is_valid_or_refused_before_a_run_begins(key, started, capsys):
    """Each of nan, inf, -1 and 0, by what the option's own declaration says."""
    kind, option, _ = declared(Config())[key]
    for value in (math.nan, math.inf, -1.0, 0.0):
        text = f"({value}, {value})" if kind is not float and math.isfinite(value) else str(value)
        code, said = exit_code(*DIGITS, f"--config.{key}={text}"), capsys.readouterr().err
        above = -math.inf if option.above is None else option.above
        least = -math.inf if option.at_least is None else option.at_least
        valid = math.isfinite(value) and value >= least and value > above
        assert code == (0 if valid else 2)
        assert len(started) == valid
        if valid:
            assert get(started.pop()[0], key) == (value if kind is float else (value, value))
        else:
            assert f"error: config.{key} is " in said
            assert "; it must be a " in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("seed=-1", "config.seed is -1; it must be a whole number, at least 0"),
        ("data.pad=-1", "config.data.pad is -1; it must be a whole number, at least 0"),
        ("data.images_per_class=-3", "config.data.images_per_class is -3; it must be a whole number, at least 0"),
        ("train.first.milestones=", r"milestones is \('',\); .*increasing whole numbers.* Write it as \(2, 3\)"),
        ("train.first.milestones=abc", r"milestones is \('abc',\); it must be a tuple of increasing whole"),
        ("train.first.milestones=(3, 2)", r"milestones is \(3, 2\); it must be a tuple of increasing whole"),
        ("evolution.alpha=nan", "config.evolution.alpha is nan; it must be a finite number, at least 0"),
        ("evolution.ridge=nan", "config.evolution.ridge is nan; it must be a finite number"),
        ("evolution.alpha=1e39", "config.evolution.alpha is 1e[+]39; it must be a finite number"),
        ("evolution.alpha=much", "config.evolution.alpha is 'much'; it must be a finite number, at least 0"),
        ("train.batch_size=1.5", "config.train.batch_size is '1.5'; it must be a whole number, at least 1"),
        ("loss.second_view=maybe", "config.loss.second_view is 'maybe'; it must be True or False"),
        ("train.first.lr=-0.1", "config.train.first.lr is -0.1; it must be a finite number, at least 0"),
        ("train.momentum=inf", "config.train.momentum is inf; it must be a finite number, at least 0 and below 1"),
        ("train.first.weight_decay=-1", "config.train.first.weight_decay is -1.0"),
        ("loss.kd_temperature=0", "config.loss.kd_temperature is 0.0; it must be a finite number, above 0"),
        ("loss.kd_weight=-1", "config.loss.kd_weight is -1.0; it must be a finite number, at least 0"),
        ("evolution=1", "config.evolution is a section. Set one of its keys: evolution.capacity, evolution.alpha"),
        ("evolution.alhpa=1", "Unknown config key 'evolution.alhpa'. Did you mean 'evolution.alpha'"),
    ],
)
def test_a_value_that_is_not_allowed(refused, arguments, words):
    said = refused(*DIGITS, f"--config.{arguments}")
    with pytest.raises(UserError, match=words):
        raise UserError(said)
    assert len(said.splitlines()) == 1
    assert len(said) < 400, "no list of all keys"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def get_config(): return {'seed': 0}",
            "returned a value of type dict; it must return a rose_jax.config.C",
        ),
        ("def get_config(): pass", "returned a value of type NoneType; it must return a rose_jax.config.Config"),
        (
            "\nimport no_such_thing",
            "line 2 cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        ("def get_config(:", "line 1 cannot be imported: SyntaxError"),
        ("config = 1", "has no function get_config. configs/digits_cold5.py is one that works"),
        (
            "def get_config():\n  return 1 / 0",
            "line 2 cannot make its config: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_a_config_file_that_is_none(refused, tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(text)
    said = refused("--config", str(path), "--config.seed=1")
    assert str(path) in said
    assert words in said


def test_a_preset_for_a_config_file_without_any(refused, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from configs.digits_cold5 import get_config as of\ndef get_config(): return of()"
    )
    assert "mine.py cannot make its config: TypeError: get_config() takes 0" in refused(
        "--config", str(tmp_path / "mine.py:thin")
    )


def test_what_is_no_config_file(refused):
    readme = str(Path("README.md").absolute())
    assert "README.md is not a config file: it must be Python, with a function get_config" in refused(
        "--config", readme
    )
    assert "There is no config file nowhere.py" in refused("--config", "nowhere.py")
    assert "There is no config file (no name given)" in refused("--config")
    assert "Give --config, e.g." in refused()


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3://bucket", "gs:/bucket"])
def test_a_workdir_in_a_bucket(refused, address):
    said = refused(*DIGITS, "--workdir", address)
    assert f"--workdir {address} is an address" in said
    assert "Give a folder" in said


def test_help_is_usage_and_success(capsys):
    for word in ("--help", "-h"):
        assert exit_code(word) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("usage: python -m rose_jax.main --config FILE")
        for flag in (
            "--workdir",
            "--methods",
            "--overwrite",
            "--distributed",
            "--config.KEY=VALUE",
            "--config.help",
        ):
            assert f"\n  {flag} " in shown


def test_every_key_is_explained_with_its_value_and_what_is_allowed(capsys):
    assert exit_code(*DIGITS, "--config.help") == 0
    shown = " ".join(capsys.readouterr().out.split())  # however its lines are broken
    config = get_config()
    for key, (kind, option, value) in declared(config).items():
        written = f'"{value}"' if isinstance(value, tuple) else value if value != "" else "''"
        assert f"--config.{key}={written} {' '.join(option.help.split())}; {option.allowed(kind)}" in shown
    for name, words in sections(config).items():
        assert f"{name or 'run'}: {words}" in shown


def test_help_on_some_keys(capsys, started):
    assert exit_code("--config.help=alpha") == 0
    keys = [line.split("=")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    assert "  --config.evolution.alpha" in keys
    assert all("alpha" in key for key in keys)
    assert exit_code("--config.help=alhpa") == 2
    assert "Unknown config key 'alhpa'" in capsys.readouterr().err


def test_what_help_shows_can_be_given_back(started):
    """Every key with its own value, as a shell would pass it on."""
    shown = commandline.help_on_keys(get_config())
    given = shlex.split(" ".join(line for line in shown.splitlines() if line.startswith("  --")))
    assert exit_code(*DIGITS, *given) == 0
    ((config, path),) = started
    assert config == validate(get_config())
    assert path == Path("runs/digits_cold5_seed0")


@pytest.mark.parametrize(
    ("given", "folder", "preset", "note"),
    [
        ((), "runs/digits_cold5_seed0", "full", ""),
        (("seed=3",), "runs/digits_cold5_seed3", "full", ""),
        (("evolution.alpha=0.2",), "runs/digits_cold5_seed0", "full", ""),  # which it is anyway
        (("train.log_every=7", "data.decode_workers=2"), "runs/digits_cold5_seed0", "full", ""),
        (
            ("evolution.alpha=0.02",),
            "runs/digits_cold5_evolution.alpha=0.02_seed0",
            "custom",
            "changed: evolution.alpha=0.02",
        ),
        (
            ("model.compute_dtype=bfloat16", "train.steps_per_call=50"),
            "runs/digits_cold5_model.compute_dtype=bfloat16_train.steps_per_call=50_seed0",
            "full",
            "changed: model.compute_dtype=bfloat16, train.steps_per_call=50",
        ),
        (
            ("scenario.task_sizes=(5, 5)", "train.steps_per_call=2", "seed=1"),
            "runs/digits_cold5_scenario.task_sizes=5,5_train.steps_per_call=2_seed1",
            "custom",
            "changed: scenario.task_sizes=(5, 5), train.steps_per_call=2",
        ),
    ],
)
def test_changed_keys_name_the_workdir_and_are_noted_with_their_values(started, given, folder, preset, note):
    assert exit_code(*DIGITS, *(f"--config.{word}" for word in given)) == 0
    ((config, path),) = started
    assert (path, config.preset, config.note) == (Path(folder), preset, note)


def test_a_workdir_that_is_given_takes_nothing_from_others(monkeypatch):
    shared = []
    monkeypatch.setattr(experiment, "run", lambda config, workdir, *, share, **rest: shared.append(share))
    assert exit_code(*DIGITS) == exit_code(*DIGITS, "--workdir", "runs/mine") == 0
    assert shared == [True, False]


def test_a_preset_keeps_its_name(started):
    assert exit_code("--config", "configs/cifar100_cold10.py:thin", "--config.evolution.alpha=0.02") == 0
    ((config, path),) = started
    assert path == Path("runs/cifar100_cold10_thin_evolution.alpha=0.02_seed0")
    assert config.preset == "thin"


def test_a_config_file_that_names_nothing_is_named_after_its_file(started, tmp_path):
    (tmp_path / "mine.py").write_text("from rose_jax.config import Config as get_config")
    assert exit_code("--config", str(tmp_path / "mine.py")) == 0
    assert started[0][1] == Path("runs/mine_seed0")


def test_any_value_makes_a_folder_name_and_many_make_a_short_one():
    config, changes = get_config(), {"data.class_list": "a/b c.txt", "scenario.class_order": ()}
    assert default_workdir(config, changes) == Path(
        "runs/digits_cold5_data.class_list=a-b-c.txt_scenario.class_order=none_seed0"
    )
    many = {f"section.key{i}": 0.5 for i in range(40)}
    name = default_workdir(config, many).name
    assert len(name) < 255
    assert name != default_workdir(config, many | {"section.key39": 0.25}).name


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"data.name": "pets"}, "pets_folder_seed0"),
        ({"data.name": "pets", "scenario.tasks": 3}, "pets_folder_scenario.tasks=3_seed0"),
        ({"data.dataset": "npz:/some/where/birds.npz"}, "birds_folder_seed0"),
        ({"data.dataset": "tfds:birds/small:1.2.0"}, "birds-small-1.2.0_folder_seed0"),
    ],
)
def test_runs_on_own_images_are_named_by_these(keys, name):
    unchanged, config = folder.get_config(), folder.get_config()
    for key, value in keys.items():
        put(config, key, value)
    assert default_workdir(config, commandline.changed_keys(config, unchanged)).name == name


def test_the_folder_is_found_again_by_the_same_command_only():
    """Keys that may be changed one at a time give as many folders."""
    config, names = get_config(), set()
    changed = {
        "evolution.alpha": 0.1,
        "adc.alpha": 0.1,
        "train.first.lr": 0.1,
        "train.later.lr": 0.1,
        "dpcr.lam": 0.1,
    }
    for key, value in changed.items():
        other = get_config()
        put(other, key, value)
        names.add(default_workdir(other, commandline.changed_keys(other, config)).name)
    assert len(names) == len(changed)
