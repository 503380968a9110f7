"""What a compiled program costs by the compiler's own estimate: cycles, FLOP and collectives, loops multiplied out."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rose_jax.compile.hlo import Instruction, Module

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
# Real work for which the compiler writes no estimate; what else has none is bookkeeping, or runs beside other work.
_WORK = ("sort", "custom-call", "scatter", "gather", "convolution", "dot", "fft", "rng-bit-generator", "fusion")
_NO_WORK = (
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "GatherScatterIndicesBitpacked"),
    *("Sharding", "SPMDFullToShardShape"),
)
_WINDOW = re.compile(r"window=\{([^}]*)\}")


class Part(NamedTuple):
    """Instructions of one kind that came from one function of the source."""

    name: str
    cycles: int
    places: int  # instructions, loops not multiplied


class Cost(NamedTuple):
    cycles: int
    flops: int  # of products and convolutions, 2 for a multiplication with its addition
    collectives: dict[str, int]
    parts: tuple[Part, ...]  # most expensive first
    loops: tuple[tuple[str, int | None], ...]  # (name, trips), outermost first; None was counted once
    without_estimate: dict[str, int]


def cost(module: Module, ours: str = "rose_jax") -> Cost:
    """Loop bodies count as often as they run; of a conditional, the branch of most cycles."""
    cycles: Counter[str] = Counter()
    count: Counter[str] = Counter()
    # By channel: one that runs beside other work stands in several fusions.
    collectives: dict[str, tuple[str, int]] = {}
    silent: Counter[str] = Counter()
    loops: list[tuple[str, int | None]] = []
    flops = 0
    for instruction, inside, times in run(module, module.entry, 1, loops):
        exchanges = list(collectives_in(module, instruction))
        collectives |= {channel: (kind, times) for channel, kind in exchanges}
        name = part_name(module, instruction, ours)
        if instruction.cycles is not None:
            cycles[name] += times * instruction.cycles
            count[name] += 1
        elif _is_silent_work(instruction) and not exchanges:
            silent[instruction.library_call or name] += times
        flops += times * instruction_flops(module, instruction, inside)
    parts = tuple(Part(name, total, count[name]) for name, total in cycles.most_common())
    kinds: Counter[str] = Counter()
    for kind, times in collectives.values():
        kinds[kind] += times
    return Cost(cycles.total(), flops, dict(kinds), parts, tuple(loops), dict(silent))


def run(
    module: Module, computation: str, times: int, loops: list[tuple[str, int | None]] | None = None
) -> Iterator[tuple[Instruction, str, int]]:
    """Every instruction that is run, the computation that it stands in, and how often; fusions are one instruction."""
    for instruction in module.computations[computation].values():
        yield instruction, computation, times
        if instruction.opcode == "while":
            trips = module.trips(instruction, computation)
            if loops is not None:
                loops.append((instruction.op_name or instruction.name, trips))
            for body in instruction.called("body"):
                yield from run(module, body, times * (1 if trips is None else trips), loops)
        elif instruction.opcode == "conditional":
            branches = instruction.called("branch_computations")
            branches += instruction.called("true_computation") + instruction.called("false_computation")
            dearest = max(branches, key=lambda branch: total_cycles(module, branch), default=None)
            if dearest is not None:
                yield from run(module, dearest, times, loops)
        elif instruction.opcode in ("call", "async-start"):
            for called in instruction.called("calls") + instruction.called("to_apply"):
                yield from run(module, called, times, loops)


def collectives_in(module: Module, instruction: Instruction) -> Iterator[tuple[str, str]]:
    """(channel, kind) of a collective, or of those in a fusion. One without a channel goes by its own name."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        channel = re.search(r"channel_id=(\d+)", instruction.attributes)
        yield channel[1] if channel else instruction.name, kind
    if instruction.opcode == "fusion":
        for name in instruction.called("calls"):
            for inner in module.computations[name].values():
                yield from collectives_in(module, inner)


def total_cycles(module: Module, computation: str) -> int:
    return sum(times * (instruction.cycles or 0) for instruction, _, times in run(module, computation, 1))


def part_name(module: Module, instruction: Instruction, ours: str) -> str:
    """`file.py function: primitive`, of the innermost function of ours; what jax adds by itself has its name alone.

    A fusion that has no name is called after the last of its operations that has one.
    """
    inside = [i for name in instruction.called("calls") for i in module.computations[name].values()]
    if not instruction.op_name:
        instruction = next((i for i in reversed(inside) if i.op_name), instruction)
    path = instruction.op_name
    primitive = path.rsplit("/", 1)[-1] or instruction.opcode
    backward = " (backward)" if "transpose(" in path else ""
    for place in module.places(instruction):
        _, found, file = place.file.rpartition(f"{ours}/")
        if found:
            function = place.function.replace(".<locals>", "")
            return f"{file} {function}: {primitive}{backward}"
    return f"{primitive}{backward}" if path else instruction.opcode


def instruction_flops(module: Module, instruction: Instruction, inside: str) -> int:
    """Of a product or convolution, or of those in a fusion."""
    if instruction.opcode in ("fusion", "custom-call"):
        return sum(
            instruction_flops(module, inner, name)
            for name in instruction.called("calls")
            for inner in module.computations[name].values()
        )
    known = module.computations[inside]
    if instruction.opcode == "dot":
        left = known[instruction.operands[0]].dims
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        sizes = [left[int(axis)] for axis in contracted[1].split(",") if axis] if contracted else []
        return 2 * math.prod(instruction.dims) * math.prod(sizes)
    return _convolution_flops(instruction, known) if instruction.opcode == "convolution" else 0


def _convolution_flops(instruction: Instruction, known: dict[str, Instruction]) -> int:
    """2 x outputs without their space x inputs of one output x pairs of a kernel tap and an output that meet data."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None, instruction.attributes
    left, kernel, out = (
        known[instruction.operands[0]].dims,
        known[instruction.operands[1]].dims,
        instruction.dims,
    )
    batch_and_features = [size for size, label in zip(out, labels[3], strict=True) if not label.isdigit()]
    inputs = kernel[labels[2].index("i")]
    window = dict(pair.split("=") for pair in (_WINDOW.search(instruction.attributes) or ("", ""))[1].split())
    taps = 1
    for axis, label in enumerate(sorted(label for label in labels[3] if label.isdigit())):

        def read(key: str, default: str, axis: int = axis) -> str:
            return window[key].split("x")[axis] if key in window else default

        low, _ = (int(edge) for edge in read("pad", "0_0").split("_"))
        stride, left_gap, kernel_gap = (int(read(key, "1")) for key in ("stride", "lhs_dilate", "rhs_dilate"))
        size = left[labels[1].index(label)]
        taps *= sum(
            0 <= at < (size - 1) * left_gap + 1 and at % left_gap == 0
            for position in range(out[labels[3].index(label)])
            for tap in range(kernel[labels[2].index(label)])
            for at in (position * stride + tap * kernel_gap - low,)
        )
    batch_groups = re.search(r"batch_group_count=(\d+)", instruction.attributes)
    return 2 * math.prod(batch_and_features) * inputs * taps // (int(batch_groups[1]) if batch_groups else 1)


def _is_silent_work(instruction: Instruction) -> bool:
    if instruction.opcode not in _WORK or instruction.library_call in _NO_WORK:
        return False
    return math.prod(instruction.dims) > 1 or instruction.opcode == "custom-call"
