"""From repeated draws to the cells, lines and sentences of a study."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rose_jax.report.compare import spread


def cell(values: Sequence[float] | float | None, digits: int = 2) -> str:
    """ "12.34", "12.34 ± 0.56" over several draws, "-" for nothing."""
    known = _known(values)
    found = spread(known)
    if found is None:
        return "-"
    return f"{found.mean:.{digits}f}" + ("" if found.std is None else f" ± {found.std:.{digits}f}")


def signed(values: Sequence[float] | float | None, digits: int = 2) -> str:
    text = cell(values, digits)
    return text if text.startswith("-") else f"+{text}"


def average(values: Sequence[float] | float | None) -> float:
    known = _known(values)
    return float(np.mean(known)) if known else float("nan")


def deviation(values: Sequence[float]) -> float | None:
    found = spread(_known(values))
    return found.std if found else None


def series(method: str, label: str, values: Sequence[Sequence[float]], x: Sequence[Any] = (), **more: Any) -> dict:
    """A line or bar with a spread: values[i] are the draws at x[i]."""
    means, stds = [average(v) for v in values], [deviation(v) for v in values]
    line = {"method": method, "label": label, "y": means} | ({"x": list(x)} if len(x) else {})
    return line | ({"std": stds} if any(s is not None for s in stds) else {}) | more


def by_stage(method: str, label: str, runs: Sequence[Sequence[float]], **more: Any) -> dict:
    """Accuracy after each stage over several draws: runs[draw][stage]."""
    columns = list(zip(*runs, strict=True))
    return series(method, f"{label}  {average(columns[-1]):.1f}", columns, range(1, len(columns) + 1), **more)


def stage_lines(*lines: dict) -> dict[str, Any]:
    return {
        "kind": "lines",
        "x": "tasks learned",
        "y": "accuracy, %",
        "panels": [{"series": list(lines)}],
    }


def points(gap: float) -> str:
    return f"{abs(gap):.2f} points {'above' if gap >= 0 else 'below'}"


def _known(values: Sequence[float] | float | None) -> list[float]:
    if values is None:
        return []
    numbers = np.atleast_1d(np.asarray(values, float))
    return [float(v) for v in numbers if np.isfinite(v)]
