"""Which options a scored row depends on beside its trajectory: they name its outcomes, and may change on a workdir."""

import dataclasses
import hashlib
import json

from rose_jax.classifiers.ncm import CLASSIFIER_OPTIONS
from rose_jax.compensation import COMPENSATION_OPTIONS
from rose_jax.config import Config
from rose_jax.methods import Row

ALL_ROWS = ("evolution", "test")  # sections of the config


def scoring_sections(row: Row) -> tuple[str, ...]:
    return (
        *ALL_ROWS,
        *COMPENSATION_OPTIONS.get(row.compensation, ()),
        *CLASSIFIER_OPTIONS.get(row.classifier, ()),
    )


def free_sections() -> set[str]:
    """Those that change no encoder."""
    return {*ALL_ROWS, *sum((*COMPENSATION_OPTIONS.values(), *CLASSIFIER_OPTIONS.values()), ())}


def scoring_digest(config: Config, row: Row) -> str:
    """Names all values of a row's sections, so that a default that changes is never taken for the old one."""
    options = {name: dataclasses.asdict(getattr(config, name)) for name in scoring_sections(row)}
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
