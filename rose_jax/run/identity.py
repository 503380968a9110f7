"""What a result depends on is in its name.

A trajectory is known by the options of its own objective. An outcome is known by the options that its row's plug-ins
read, and by a digest of the encoders that it was made from: encoders trained anew never meet old scores. What all
trajectories of a workdir share is compared by runtime/workdir.py.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from rose_jax.classifiers import CLASSIFIERS
from rose_jax.compensation import COMPENSATIONS
from rose_jax.config import FREE_KEYS, Config, get, keys
from rose_jax.methods import Row
from rose_jax.testtime import ADAPTATIONS
from rose_jax.train.objectives import OBJECTIVES
from rose_jax.types import PyTree

EVERY_ROW = ("test.batch_size", "test.batches_per_call")


def trajectory_options(config: Config, objective: str) -> dict[str, Any]:
    """Dotted keys and values that decide how an objective's encoders are trained."""
    return _options(config, OBJECTIVES[objective].options)


def scoring_digest(config: Config, row: Row) -> str:
    """Names all values that a row's scores depend on beside its encoders."""
    plugins = (COMPENSATIONS[row.compensation], ADAPTATIONS[row.test_time], CLASSIFIERS[row.classifier])
    options = _options(config, EVERY_ROW + sum((plugin.options for plugin in plugins), ()))
    return digest_of([json.dumps([row.compensation, row.test_time, row.classifier, options], sort_keys=True)])[:8]


def digest_of(parts: Iterable[str | bytes | memoryview]) -> str:
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        hasher.update(part.encode() if isinstance(part, str) else part)
    return hasher.hexdigest()


def tree_digest(tree: PyTree) -> str:
    """Of all arrays, their names and their shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    named = ((f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}", leaf) for path, leaf in leaves)
    return digest_of(part for name, leaf in named for part in (name, np.ascontiguousarray(leaf).data))


def _options(config: Config, prefixes: Iterable[str]) -> dict[str, Any]:
    wanted = tuple(prefixes)
    chosen = [key for key in keys(config) if any(key == p or key.startswith(f"{p}.") for p in wanted)]
    return {key: json.loads(json.dumps(get(config, key))) for key in chosen if key not in FREE_KEYS}
