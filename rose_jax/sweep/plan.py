"""Which runs a sweep consists of: every config file with every seed and every combination of the values of --set."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from rose_jax import commandline
from rose_jax.config import Config
from rose_jax.errors import UserError
from rose_jax.runtime.places import default_workdir, shortened


@dataclass(frozen=True)
class Run:
    """One call of `python -m rose_jax.main`."""

    arguments: tuple[str, ...]  # as they are given to it
    workdir: Path  # which it makes of them

    @property
    def name(self) -> str:
        return self.workdir.name


def make_plan(
    configs: Sequence[str],
    seeds: Sequence[int] = (),
    sets: Sequence[str] = (),
    others: Sequence[str] = (),
    methods: str | None = None,
) -> list[Run]:
    """The runs, in the order in which they are started: all seeds of a setting before the next setting.

    sets: KEY=VALUE,VALUE; others: --config.KEY=VALUE, for every run. A UserError names what is not allowed.
    """
    values = [_values(text) for text in sets]
    keys = [key for key, _ in values] + [word.removeprefix("--config.").partition("=")[0] for word in others]
    twice = [key for key in keys if keys.count(key) > 1 or (key == "seed" and seeds)]
    if twice:
        raise UserError(f"{twice[0]} is given twice. Give all its values in one place.")
    rows = [] if methods is None else [f"--methods={methods}"]
    seeded = [[f"--config.seed={seed}"] for seed in seeds] or [[]]
    runs: list[Run] = []
    for config in configs:
        for chosen in itertools.product(*(found for _, found in values)):
            changed = [f"--config.{key}={value}" for (key, _), value in zip(values, chosen, strict=True)]
            for seed in seeded:
                arguments = ("--config", config, *others, *changed, *seed, *rows)
                runs.append(Run(arguments, default_workdir(*read(arguments))))
    for one, other in itertools.combinations(runs, 2):
        if one.workdir == other.workdir:
            told = "\n".join(f"  {' '.join(run.arguments)}" for run in (one, other))
            raise UserError(f"Two runs would share the workdir {one.workdir}, for they compute the same:\n{told}")
    return runs


def out_folder(
    configs: Sequence[str], seeds: Sequence[int], sets: Sequence[str], others: Sequence[str] = ()
) -> Path:
    """runs/sweep_CONFIGS_KEY=VALUES_seeds=0,1,2: where logs and the common report go.

    With what differs for all runs, too: another sweep's report is not written over.
    """
    files = [Path(config.partition(":")[0]).stem + config.partition(":")[2] for config in configs]
    same = [word.removeprefix("--config.") for word in others]
    parts = [*files, *same, *sets, *(["seeds=" + ",".join(map(str, seeds))] if seeds else [])]
    return Path("runs") / ("sweep_" + shortened(re.sub(r"[^\w=,.+-]+", "-", "_".join(parts))))


def seeds_of(text: str) -> list[int]:
    """ "0,1,2" as numbers."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UserError(f"--seeds {text!r} is not a list of whole numbers such as 0,1,2,3,4.")
    return [int(seed) for seed in text.split(",")]


def read(arguments: Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """The config that `python -m rose_jax.main ARGUMENTS` runs and what it changes of its file; a UserError is its own."""
    words, values = ["main", *arguments], flags.FlagValues()
    file = commandline.config_argument(words)
    assert file is not None
    commandline.load_config(file)  # its mistakes, before absl meets them
    commandline.check_keys(commandline.given_keys(words))
    config = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=words)
    methods = flags.DEFINE_list("methods", None, "", flag_values=values)
    try:
        values(words)
    except flags.Error as error:
        raise commandline.explained(str(error)) from None
    return config.value, commandline.settle(config.value, file, methods.value)


def _values(text: str) -> tuple[str, list[str]]:
    """("evolution.alpha", ["0.02", "0.2"]) of "evolution.alpha=0.02,0.2"; commas in brackets belong to a value."""
    key, equals, listed = text.partition("=")
    if not key or not equals or not listed:
        raise UserError(f"--set {text!r} is not of the form KEY=VALUE,VALUE, as evolution.alpha=0.02,0.2.")
    return key, [value.strip() for value in re.findall(r"(?:\([^)]*\)|[^,(])+", listed)]
