"""Whether two runs were made of the same: comparisons of configurations as they are saved."""

import json
from typing import Any

from rose_jax.config import FREE_KEYS, Config

LAYOUT = 2  # of the files in a workdir; 1 named results by their options alone
SHARED = ("seed", "data", "scenario", "model")  # what all trajectories of a workdir have in common


def difference(there: dict[str, Any], here: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ between two saved configurations, of those that all trajectories share."""
    flat = flatten(here)
    shared = [key for key in flat if key.split(".")[0] in (*SHARED, "data_identity") and key not in FREE_KEYS]
    return differing_options(flatten(there), {key: flat[key] for key in shared})


def differing_options(there: dict[str, Any], here: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """A key that is newer than what was saved had its default then; one that is known no more means nothing."""
    there = flatten(json.loads(Config().to_json())) | there
    return [(key, there.get(key), value) for key, value in here.items() if there.get(key) != value]


def told(differing: list[tuple[str, Any, Any]]) -> str:
    return "".join(f"  {key}: there {there!r}, here {here!r}\n" for key, there, here in differing)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
