"""Where a run lives: the folder that its options name, and which places will not do."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose_jax.config import Config
from rose_jax.errors import UserError

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


def check_place(workdir: str | Path) -> None:
    """Refuses addresses of object stores: they are no folders, and have neither locks nor renames."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", str(workdir))
    if scheme:
        raise UserError(
            f"--workdir {workdir} is an address ({scheme[1]}:), not a folder. Give a folder on a disk or a shared file "
            "system that has locks and renames (NFS, Lustre), and keep a copy in the bucket with --mirror."
        )


def _as_a_name(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
    return re.sub(r"[^\w.,+-]+", "-", text) or "none"
