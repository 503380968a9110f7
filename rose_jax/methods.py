"""The paper's rows as literal tuples: (objective, compensation, test time, classifier)."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from rose_jax.errors import UserError


class Row(NamedTuple):
    objective: str  # what the encoder is trained on
    compensation: str  # how old prototypes move after a task
    test_time: str  # what happens during the test stream
    classifier: str  # how a feature becomes a label
    # Rows that are in none of the paper's tables: "ours", or "published" by others.
    origin: str = "paper"


METHODS: dict[str, Row] = {
    "base": Row("base", "none", "none", "ncm"),
    "projector": Row("base", "projector", "none", "ncm"),
    "gd": Row("base", "projector", "gd", "ncm"),
    "gd_queue": Row("base", "projector", "gd_queue", "ncm"),
    "gd_oracle": Row("base", "gd_oracle", "none", "ncm"),
    "batch_norm": Row("base", "projector", "batch_norm", "ncm", "ours"),
    "tent": Row("base", "projector", "tent", "ncm"),
    "eata": Row("base", "projector", "eata", "ncm"),
    "cotta": Row("base", "projector", "cotta", "ncm"),
    "ttt": Row("base_rotation", "projector", "ttt", "ncm"),
    "ttt_off": Row("base_rotation", "projector", "none", "ncm", "ours"),
    "ttt++": Row("base_simclr", "projector", "ttt++", "ncm"),
    "ttt++_off": Row("base_simclr", "projector", "none", "ncm", "ours"),
    "rose": Row("base", "projector", "rose", "ncm"),
    "lwf": Row("lwf", "none", "none", "head"),
    "lwf_ncm": Row("lwf", "none", "none", "ncm", "ours"),
    "sdc": Row("lwf", "sdc", "none", "ncm"),
    "adc": Row("lwf", "adc", "none", "ncm"),
    "ldc": Row("lwf", "ldc", "none", "ncm"),
    "dpcr": Row("lwf", "dpcr", "none", "ridge", "published"),
    "efc": Row("efc", "own", "none", "head"),
    "fcs": Row("fcs", "own", "none", "head"),
    "fetril": Row("frozen", "none", "none", "svm"),
    "fetril_fc": Row("frozen", "none", "none", "fc", "ours"),
    "fecam_1": Row("frozen", "none", "none", "mahalanobis_common"),
    "fecam": Row("frozen", "none", "none", "mahalanobis"),
    "ssre": Row("ssre", "none", "none", "head"),
    "pass": Row("pass", "none", "none", "head"),
    "il2a": Row("il2a", "none", "none", "head"),
}


WHITENED, RIDGE = "_whitened", "_ridge"
SUFFIXES = {WHITENED: "whitened", RIDGE: "ridge"}  # any row + suffix: the same row with another classifier


def resolve(names: Iterable[str]) -> dict[str, Row]:
    """Rows by name, in the order asked for.

    Beside those above: "lwf+rose" or "lwf+projector", one of base's rows on the encoders of any objective;
    "rose_whitened", any row with its prototypes compared in the evolved metric; and "rose_ridge", any row with
    DPCR's classifier.
    """
    rows = {}
    for name in names:
        row = find(name)
        if row is None:
            raise _unknown(name)
        rows[name] = row
    if not rows:
        raise UserError(f"No method to score: --methods is empty. Known: {', '.join(METHODS)}.")
    return rows


def find(name: str) -> Row | None:
    plain, classifier = split(name)
    row = METHODS.get(plain) or _combination(plain)
    return row._replace(classifier=classifier, origin="ours") if row and classifier else row


def split(name: str) -> tuple[str, str | None]:
    """("rose", "whitened") of "rose_whitened", ("rose", None) of "rose"."""
    for suffix, classifier in SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), classifier
    return name, None


def _combination(name: str) -> Row | None:
    """OBJECTIVE+ROW: the choices of one of base's rows on encoders that another objective has trained."""
    objective, _, row = name.partition("+")
    return (
        _rows_for_any_objective()[row]._replace(objective=objective, origin="ours")
        if name in _combinations()
        else None
    )


def _combinations() -> list[str]:
    objectives = dict.fromkeys(row.objective for row in METHODS.values())
    return [f"{objective}+{row}" for objective in objectives for row in _rows_for_any_objective()]


def _rows_for_any_objective() -> dict[str, Row]:
    """Base's, and those that need a head of their own: they refuse an objective without it by name."""
    return {name: row for name, row in METHODS.items() if row.objective == "base" or row.test_time != "none"}


def _unknown(name: str) -> UserError:
    """The nearest of all names, and the short list of those that the others are made of."""
    plain = [*METHODS, *_combinations()]
    suffixed = [row + suffix for row in plain for suffix in SUFFIXES]
    nearest = difflib.get_close_matches(name, [*plain, *suffixed], n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UserError(
        f"Unknown method {name!r}.{hint} Known: {', '.join(METHODS)}; OBJECTIVE+ROW as lwf+rose; "
        f"and each of these with {' or '.join(SUFFIXES)}."
    )
