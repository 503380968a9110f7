"""Where a run lives: the folder that its options name."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose_jax.config import Config

LONGEST_CHANGES = 150  # characters of a workdir's name


def default_workdir(config: Config, changes: Mapping[str, Any]) -> Path:
    """runs/NAME_PRESET_KEY=VALUE_seedN: a folder of its own for every set of changes to a config file.

    Those on own images begin with these: runs/pets_folder_seed0.
    """
    parts = [config.name, config.preset if config.preset not in ("full", "custom", "own") else ""]
    if config.preset == "own":
        kind, _, rest = config.data.dataset.partition(":")
        parts.insert(0, _as_a_name(config.data.name or (Path(rest).stem if kind == "npz" else rest)))
        changes = {key: value for key, value in changes.items() if key not in ("data.name", "data.dataset")}
    changed = shortened("_".join(f"{key}={_as_a_name(value)}" for key, value in changes.items()))
    return Path("runs") / "_".join(filter(None, [*parts, changed, f"seed{config.seed}"]))


def shortened(name: str) -> str:
    """The name, or its beginning and a digest of it: file systems allow 255 bytes."""
    if len(name) <= LONGEST_CHANGES:
        return name
    return f"{name[:LONGEST_CHANGES]}_{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def _as_a_name(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
    return re.sub(r"[^\w.,+-]+", "-", text) or "none"
