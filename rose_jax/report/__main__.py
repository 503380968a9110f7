"""`python -m rose_jax.report RUN [RUN...]`: the report of one finished run, or of several side by side.

Runs that differ in the seed alone are averaged.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rose_jax import report
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rose_jax.report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a workdir that holds results.json")
    parser.add_argument(
        "--out", metavar="DIR", help="where to write (default: the run itself; for several, ./comparison)"
    )
    parser.add_argument("--latex", action="store_true", help="also report.tex: the tables, and figures as PDF")
    flags = parser.parse_args(arguments)
    runs = list({Path(run).resolve(): run for run in flags.runs}.values())  # a run that is named twice counts once
    out = flags.out or (runs[0] if len(runs) == 1 else "comparison")
    try:
        written = report.write_several(runs, out, flags.latex)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"The report cannot be written to {out} ({error}). Make room, or give another --out.", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("Interrupted; each file that is there is whole. The same command writes the rest.", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    print(written.text)
    print()
    others = [Path(out) / name for name in ("report.md", "report.csv", *["report.tex"] * flags.latex)]
    for path in (written.html, *others, *written.figures):
        print(path)
    print("Each figure is there as .pdf and .svg, too.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
