"""What the command line says: its config file, the keys that it changes, and the help on all of them."""

import contextlib
import importlib.util
import re
import textwrap
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rose_jax.config import Config, get, validate
from rose_jax.errors import UserError, unknown
from rose_jax.options import declared, keys, refusal, sections

USAGE = """\
usage: python -m rose_jax.main --config FILE[:PRESET] [--methods ROW,ROW] [--workdir DIR] [--config.KEY=VALUE ...]

Trains what is missing, scores the rows, writes results.json and report.html. The same command continues a run
that was stopped.
"""
MORE = """\
  --config.KEY=VALUE  one option of the config, e.g. --config.evolution.alpha=0.02; tuples as '(60, 120)'
  --config.help       every such key: what it is, what is allowed, its value in FILE; --config.help=TEXT: those with TEXT

example: python -m rose_jax.main --config configs/digits_cold5.py --methods base,rose
"""
EXAMPLE = "configs/digits_cold5.py is one that works."
HELP = ("-h", "-help", "--help", "-helpshort", "--helpshort", "-helpfull", "--helpfull", "-?", "--?")


def load_config(argument: str) -> Config:
    """What get_config of FILE[:PRESET] returns; a UserError says what is wrong with the file."""
    name, colon, preset = argument.partition(":")
    path = Path(name)
    if not name or not path.is_file():
        raise UserError(
            f"There is no config file {name or '(no name given)'}. The paper's are in configs/ of the repository."
        )
    if path.suffix != ".py":
        raise UserError(f"{path} is not a config file: it must be Python, with a function get_config. {EXAMPLE}")
    module = _imported(path)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"The config file {path} has no function get_config. {EXAMPLE}")
    with _blamed(path, "make its config"):
        config = module.get_config(*([preset] if colon else []))
    if not isinstance(config, Config):
        raise UserError(
            f"get_config of {path} returned a value of type {type(config).__name__}; it must return a "
            f"rose_jax.config.Config. {EXAMPLE}"
        )
    config.name = config.name or path.stem
    return config


def settle(config: Config, file: str, methods: Iterable[str] | None = None) -> dict[str, Any]:
    """Checks the config of a command line and says in it what was changed of its file, which is returned."""
    if methods is not None:
        config.methods = tuple(methods)
    validate(config)
    unchanged = load_config(file)
    changes = changed_keys(config, unchanged)
    config.name = config.name or unchanged.name
    mark_changes(config, changes)
    return changes


def changed_keys(config: Config, unchanged: Config) -> dict[str, Any]:
    """Options that differ from those of the run's config file, but for its seed and what changes no number."""
    items = {key: item for key, item in declared(config).items() if key not in ("name", "seed")}
    return {key: i.value for key, i in items.items() if not i.option.free and i.value != get(unchanged, key)}


def mark_changes(config: Config, changes: dict[str, Any]) -> None:
    """Says in the config what was changed: a full setting becomes a custom one, unless only the machine's keys were."""
    if not changes:
        return
    item = declared(config)
    if config.preset == "full" and not all(item[key].option.machine for key in changes):
        config.preset = "custom"
    told = "changed: " + ", ".join(f"{key}={value}" for key, value in changes.items())
    config.note = "; ".join(filter(None, [config.note, told]))


def config_argument(argv: Sequence[str]) -> str | None:
    """FILE[:PRESET] of the command line's last --config; None if there is none."""
    found = None
    for position, argument in enumerate(argv[1:], 1):
        name, equals, value = argument.partition("=")
        if name in ("--config", "-config"):
            found = value if equals else "".join(argv[position + 1 : position + 2])
    return found


def given_keys(argv: Iterable[str]) -> list[str]:
    """Every KEY of a --config.KEY=VALUE on the command line."""
    names = [argument.lstrip("-").partition("=")[0] for argument in argv if argument.startswith("-")]
    return [name.removeprefix("config.") for name in names if name.startswith("config.")]


def check_keys(given: Iterable[str]) -> None:
    """A UserError for the first that is no option: it names the nearest, or what a section holds."""
    known = keys(Config())
    for key in given:
        inside = [other for other in known if other.startswith(f"{key}.")]
        if inside:
            raise UserError(f"config.{key} is a section. Set one of its keys: {', '.join(inside)}.")
        if key not in known:
            raise unknown("config key", key, known, "--config.help")


def explained(message: str) -> UserError:
    """absl's message about the command line; of a value without its option's type, what is allowed."""
    match = re.match(r"flag --config\.([\w.]+)=(.*?): ", message, re.DOTALL)
    item = declared(Config()).get(match[1]) if match else None
    return refusal(match[1], item.kind, item.option, match[2]) if match and item else UserError(message)


def help_on_flags(described: Mapping[str, str]) -> str:
    """The usage, with the flags and what each is for."""
    listed = "".join(
        textwrap.fill(f"--{name:<17} {text}", 118, initial_indent="  ", subsequent_indent=22 * " ") + "\n"
        for name, text in described.items()
    )
    return f"{USAGE}\n{listed}{MORE}"


def help_on_keys(config: Config, wanted: str = "") -> str:
    """Every option whose key has `wanted` in it, section by section: its value here, what it is, what is allowed."""
    words = sections(config)
    found: dict[str, list[str]] = {}
    for key, (kind, option, value) in declared(config).items():
        if wanted in key:
            lines = found.setdefault(key.rpartition(".")[0], [])
            lines.append(f"  --config.{key}={_written(value)}")
            indent = 6 * " "
            lines += textwrap.wrap(
                f"{option.help}; {option.allowed(kind)}", 118, initial_indent=indent, subsequent_indent=indent
            )
    if not found:
        raise unknown("config key", wanted, keys(config), "--config.help")
    return "\n".join("\n".join([f"{name or 'run'}: {words[name]}", *lines, ""]) for name, lines in found.items())


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"config_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _blamed(path, "be imported"):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _blamed(path: Path, act: str) -> Iterator[None]:
    """Whatever a config file may raise is one message that names the file and the line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
        where = f", line {line}" if line else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        raise UserError(
            f"The config file {path}{where} cannot {act}: {type(error).__name__}: {said}. Correct it; {EXAMPLE}"
        ) from error


def _written(value: Any) -> str:
    """As a shell takes it."""
    if isinstance(value, (tuple, list)):
        return f'"{tuple(value)}"'
    return str(value) if value != "" else "''"
