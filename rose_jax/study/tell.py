"""Turns the numbers of repeated draws into the cells, lines and sentences of a study."""

from collections.abc import Sequence

import numpy as np

from rose_jax.report.compare import points, spread
from rose_jax.report.plots import by_stage, log_lines, series, stage_lines

__all__ = ["average", "by_stage", "cell", "log_lines", "points", "row", "series", "signed", "stage_lines"]


def cell(values: Sequence[float] | float | None, sign: str = "") -> str:
    """ "12.34", "12.34 ± 0.56" over several draws, "-" if there is no number."""
    found = spread([values] if values is None or isinstance(values, int | float) else values)
    return found.text(sign=sign) if found else "-"


def signed(values: Sequence[float] | float | None) -> str:
    """Like `cell`, for differences: with a plus before a positive mean."""
    return cell(values, sign="+")


def row(label: str, stages: Sequence[float], printed: float | None) -> tuple[str, ...]:
    """Cells of a row: label, last accuracy, average over the stages, the paper's last accuracy."""
    return label, cell(stages[-1]), cell(average(stages)), cell(printed)


def average(values: Sequence[float] | np.ndarray) -> float:
    """The mean of the values that are finite numbers; NaN if there is none."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
