"""What was found of a run's programs, as a table for people and as JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rose_jax.compile.compiling import Found
from rose_jax.compile.describe import Topology
from rose_jax.compile.programs import Program

Rows = Sequence[tuple[Program, Found]]
HEADER = (
    *("program", "compile s", "code MB", "arguments MB", "temporary MB", "of HBM", "GFLOP"),
    *("k cycles", "ms", "of peak", "collectives"),
)


def text(rows: Rows, topology: Topology) -> str:
    """One line per program, and below it where its cycles go."""
    lines = [_cells(program, found, topology) for program, found in rows]
    widths = [max(len(row[column]) for row in (HEADER, *lines)) for column in range(len(HEADER))]
    written = [_line(HEADER, widths)]
    for (_, found), cells in zip(rows, lines, strict=True):
        written.append(_line(cells, widths))
        if not found.fits:
            written.append(f"    does not fit: {found.message}")
        written += [f"    {100 * cycles / max(found.cycles, 1):5.1f} %  {name}" for name, cycles in found.parts]
        unknown_loops = [name for name, trips in found.loops if trips is None]
        if unknown_loops:
            written.append(
                f"    counted once, as the text does not say how often they run: {', '.join(unknown_loops)}"
            )
        if found.without_estimate:
            unknown = ", ".join(f"{count} x {name}" for name, count in found.without_estimate.items())
            written.append(f"    without an estimate, and so not in the cycles: {unknown}")
    chip = topology.chip
    written.append(
        f"\n{topology.name}: per device, by the compiler's estimate ({topology.compiler}). FLOP, cycles and ms are of one "
        f"training step, or of one image. ms: at {chip.clock / 1e9:.2f} GHz; of peak: of {chip.flops_per_cycle:,} FLOP a "
        f"cycle ({chip.peak / 1e12:.0f} TFLOP/s in bfloat16); HBM: {chip.memory / 2**30:.0f} GiB. Time on the links between "
        "chips is in no estimate. The loop over the steps of one call counts once."
    )
    return "\n".join(written)


def record(rows: Rows, topology: Topology) -> dict[str, Any]:
    """The same as plain values: FLOP and cycles of one step or image."""
    return {
        "topology": topology.name,
        "devices": len(topology.devices),
        "compiler": topology.compiler,
        "chip": topology.chip._asdict() | {"clock": topology.chip.clock},
        "programs": [
            {"name": program.name, "unit": program.unit, "runs": program.runs}
            | dataclasses.asdict(found)
            | {
                "flops": found.flops / program.units,
                "cycles": found.cycles / program.units,
                "collectives": {kind: count / program.units for kind, count in found.collectives.items()}
                if program.unit == "step"
                else found.collectives,
                "share_of_hbm": found.memory / topology.chip.memory,
                "share_of_peak": _share(found, topology),
            }
            for program, found in rows
        ],
    }


def _share(found: Found, topology: Topology) -> float:
    return found.flops / (max(found.cycles, 1) * topology.chip.flops_per_cycle)


def _cells(program: Program, found: Found, topology: Topology) -> tuple[str, ...]:
    if not found.fits:
        return (program.name, f"{found.seconds:.0f}", *["-"] * 9)
    chip = topology.chip
    cycles = found.cycles / program.units
    collectives = ", ".join(f"{count} {kind}" for kind, count in sorted(found.collectives.items()))
    return (
        f"{program.name} ({program.unit})",
        f"{found.seconds:.0f}",
        *(f"{size / 1e6:,.1f}" for size in (found.code, found.arguments, found.temporary)),
        f"{100 * found.memory / chip.memory:.1f} %",
        f"{found.flops / program.units / 1e9:,.3f}",
        f"{cycles / 1e3:,.1f}",
        f"{1e3 * cycles / chip.clock:,.4g}",
        f"{100 * _share(found, topology):.1f} %",
        collectives or "none",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(w) if i in (0, len(widths) - 1) else cell.rjust(w)
        for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
