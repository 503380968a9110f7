"""Compares two results.json: all of `scores` but the timings must be equal, to the bit.

    python scripts/compare_results.py RUN RUN

Prints every value that differs, with the row it belongs to; exit code 1 if there is any.
"""

import json
import sys
from pathlib import Path
from typing import Any

NOT_COMPARED = (
    "ms_per_image",
    "options",
    "encoders",
)  # timings, and names that change with the layout of a workdir


def differences(one: Any, two: Any, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        keys = [key for key in dict.fromkeys((*one, *two)) if key not in NOT_COMPARED]
        return [line for key in keys for line in differences(one.get(key), two.get(key), f"{where}/{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]")]
    return [] if one == two else [f"{where}: {one!r} against {two!r}"]


def main(paths: list[str]) -> int:
    if len(paths) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    one, two = (json.loads((Path(path) / "results.json").read_text())["scores"] for path in paths)
    found = differences(one, two)
    print("\n".join(found) or f"equal to the bit: {', '.join(one)}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
