"""Options of a configuration: each field of its dataclasses says what it is and what is allowed, in one place."""

import dataclasses
import functools
import itertools
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from rose_jax.errors import UserError, unknown

T = TypeVar("T")
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127  # of float32


@dataclasses.dataclass(frozen=True)
class Option:
    """Bounds of a tuple are those of each entry.

    Floats must be finite in float32, in which they are used: nothing here has a use for nan or inf.
    """

    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    increasing: bool = False  # the entries of a tuple
    free: bool = False  # changes no number of a run, and so may differ between restarts on one workdir
    machine: bool = False  # suits the run to a machine: with another value it is still the setting that it was

    def allowed(self, kind: Any) -> str:
        """What a value of the type `kind` must be, in words that follow "it must be"."""
        if self.choices:
            return "one of " + ", ".join(map(_shown, self.choices))
        several = typing.get_origin(kind) is tuple
        words = _KINDS[_entry(kind)][several]
        if several:
            words = f"a tuple of {'increasing ' * self.increasing}{words}"
        bounds = " and ".join(f"{name.replace('_', ' ')} {limit}" for name, _, limit in self._limits())
        return words + (f", {'each ' * several}{bounds}" if bounds else "")

    def holds(self, value: Any) -> bool:
        """For a value of the right type."""
        entries = value if isinstance(value, (tuple, list)) else (value,)
        if self.increasing and any(later <= earlier for earlier, later in itertools.pairwise(entries)):
            return False
        if self.choices:
            return all(entry in self.choices for entry in entries)
        numbers = [entry for entry in entries if not isinstance(entry, (str, bool))]
        finite = all(abs(number) <= LARGEST_FLOAT for number in numbers)  # false for nan
        return finite and all(kept(number, limit) for _, kept, limit in self._limits() for number in numbers)

    def _limits(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
        tests = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
        return [
            (name, kept, getattr(self, name)) for name, kept in tests.items() if getattr(self, name) is not None
        ]


def option(default: T, help: str, **limits: Any) -> T:
    """A dataclass field; its annotation is the type that is checked. See Option for the limits."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **limits)})


def choice(choices: tuple[str, ...], help: str, **more: Any) -> str:
    """A field that is one of these; the first is the default."""
    return option(choices[0], help, choices=choices, **more)


def section(factory: Callable[[], T], help: str, instead: Mapping[str, Option] | None = None) -> T:
    """A field that is a dataclass of options; `instead` are keys inside it that mean something else here."""
    return dataclasses.field(default_factory=factory, metadata={"help": help, "instead": instead or {}})


class Declared(NamedTuple):
    kind: Any  # the annotation: bool, int, float, str, or a tuple of one of these
    option: Option
    value: Any


def declared(config: Any, prefix: str = "", instead: Mapping[str, Option] | None = None) -> dict[str, Declared]:
    """Every option of a configuration by its dotted key, in the order of their declaration."""
    found: dict[str, Declared] = {}
    kinds = _kinds(config.__class__)
    for item in dataclasses.fields(config):
        key, kind, value = prefix + item.name, kinds[item.name], getattr(config, item.name)
        if not item.metadata:
            raise TypeError(f"{type(config).__name__}.{item.name} must be declared by option() or section().")
        if "option" in item.metadata:
            found[key] = Declared(kind, (instead or {}).get(key, item.metadata["option"]), value)
        elif isinstance(value, kind):
            own = {f"{key}.{inner}": option for inner, option in item.metadata["instead"].items()}
            found |= declared(value, f"{key}.", {**own, **(instead or {})})
        else:
            raise UserError(f"config.{key} is {value!r}; it must be {kind.__name__}(...).")
    return found


@functools.cache
def _kinds(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def sections(config: Any, prefix: str = "", help: str = "the run as a whole") -> dict[str, str]:
    """What each section of a configuration is for, by its dotted key; "" is the configuration itself."""
    found = {prefix: help}
    for item in dataclasses.fields(config):
        if "help" in item.metadata:
            key = f"{prefix}.{item.name}" if prefix else item.name
            found |= sections(getattr(config, item.name), key, item.metadata["help"])
    return found


def keys(config: Any) -> list[str]:
    """Every dotted key of a configuration."""
    return list(declared(config))


def get(config: Any, key: str) -> Any:
    """get(config, "train.first.lr")."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def put(config: Any, key: str, value: Any) -> None:
    """put(config, "train.first.lr", 0.1); a list, as JSON has it, becomes a tuple."""
    path, _, name = key.rpartition(".")
    setattr(get(config, path) if path else config, name, tuple(value) if isinstance(value, list) else value)


def check(config: Any) -> None:
    """Raises a UserError that names the first key whose value is not allowed, the value, and what is."""
    check_types(config)
    for key, (kind, option, value) in declared(config).items():
        if not option.holds(value):
            if option.choices:
                raise unknown(f"value of config.{key}", value, map(_shown, option.choices))
            raise refusal(key, kind, option, value)


def check_types(config: Any) -> None:
    for key, (kind, option, value) in declared(config).items():
        if not _is_a(kind, value):
            raise refusal(key, kind, option, value)


def refusal(key: str, kind: Any, option: Option, value: Any) -> UserError:
    """An error that names the key, its value and what is allowed."""
    written = " Write it as (2, 3); () is none." if typing.get_origin(kind) is tuple else ""
    return UserError(f"config.{key} is {value!r}; it must be {option.allowed(kind)} ({option.help}).{written}")


def fill(config: Any, saved: Any, prefix: str = "config") -> None:
    """Sets what `saved` (read from JSON) has; keys that the configuration does not know are left out."""
    if not isinstance(saved, dict):
        raise UserError(f"{prefix} is {saved!r}; it must be an object with keys.")
    for item in dataclasses.fields(config):
        if item.name in saved:
            current = getattr(config, item.name)
            if dataclasses.is_dataclass(current):
                fill(current, saved[item.name], f"{prefix}.{item.name}")
            else:
                put(config, item.name, saved[item.name])


_KINDS = {  # one, several
    bool: ("True or False", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    str: ("a text", "texts"),
}


def _is_a(kind: Any, value: Any) -> bool:
    if typing.get_origin(kind) is tuple:
        return isinstance(value, (tuple, list)) and all(_is_a(_entry(kind), entry) for entry in value)
    if isinstance(value, bool):  # which Python counts among the integers
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _entry(kind: Any) -> type:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind


def _shown(choice: str) -> str:
    return choice or "''"
