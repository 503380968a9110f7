"""The text of a compiled program (HLO) as data: computations, their instructions, and where in the source each came from."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b[a-z]\w*\[([\d,]*)\]")
_FRAME = re.compile(r"(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?")
_LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)")
_NAMED = re.compile(r'(\d+) "(.*)"')


class Instruction(NamedTuple):
    name: str
    opcode: str
    shape: str  # as written, e.g. f32[128,64]{0,1:T(8,128)}
    operands: tuple[str, ...]
    written: str  # what stands between the parentheses; of a constant, its value
    attributes: str

    @property
    def dims(self) -> tuple[int, ...]:
        """Of an array; of a tuple, those of its first."""
        match = _ARRAY.search(self.shape)
        return tuple(int(size) for size in match[1].split(",") if size) if match else ()

    @property
    def op_name(self) -> str:
        """jax's name of it, e.g. jit(step)/jvp(ResNet)/dot_general."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def library_call(self) -> str:
        """What a custom-call calls."""
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def cycles(self) -> int | None:
        """The compiler's own estimate; None where it gives none."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match else None

    def called(self, role: str) -> list[str]:
        """Computations that it calls as its body, condition, calls, to_apply or branch_computations."""
        match = re.search(rf"\b{role}=(%[\w.\-]+|\{{[^}}]*\}})", self.attributes)
        return _OPERAND.findall(match[1]) if match else []


class Place(NamedTuple):
    file: str
    function: str
    line: int


class Module(NamedTuple):
    computations: dict[
        str, dict[str, Instruction]
    ]  # each: its instructions by name, in order; the last is the root
    entry: str
    frames: dict[int, tuple[Place, int]]  # of a call stack: the place, and the frame that called it (0: none)

    def places(self, instruction: Instruction) -> Iterator[Place]:
        """The call stack under which jax traced it, innermost first."""
        match = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        frame = int(match[1]) if match else 0
        while frame in self.frames:
            place, frame = self.frames[frame]
            yield place

    def trips(self, loop: Instruction, inside: str) -> int | None:
        """How often a while loop of the computation `inside` runs; None if that is known only when it runs.

        The counter is compared with a constant in the loop's condition, and goes by ones from what the loop is given.
        """
        (condition,) = loop.called("condition")
        body = self.computations[condition]
        compare = [i for i in self._with_fused(body) if i.opcode == "compare"]
        constants = [int(i.written) for i in self._with_fused(body) if _is_whole_number(i)]
        start = self._start(loop, inside, body)
        if len(compare) != 1 or len(constants) != 1 or start is None:
            return None
        (limit,), direction = constants, re.search(r"direction=(\w+)", compare[0].attributes)
        return {
            "LT": max(limit - start, 0),
            "LE": max(limit - start + 1, 0),
            "GT": max(start - limit, 0),
            "GE": max(start - limit + 1, 0),
            "NE": abs(limit - start),
        }.get(direction[1] if direction else "")

    def _start(self, loop: Instruction, inside: str, condition: dict[str, Instruction]) -> int | None:
        """The counter's first value, if it is a constant."""
        elements = [i for i in condition.values() if i.opcode == "get-tuple-element"]
        index = re.search(r"index=(\d+)", elements[0].attributes) if len(elements) == 1 else None
        known = self.computations[inside]
        given = known.get(loop.operands[0]) if loop.operands else None
        if index is None or given is None or given.opcode != "tuple":
            return None
        first = known.get(given.operands[int(index[1])])
        while first is not None and first.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
            first = known.get(first.operands[0])
        return int(first.written) if first is not None and _is_whole_number(first) else None

    def _with_fused(self, computation: dict[str, Instruction]) -> Iterator[Instruction]:
        for instruction in computation.values():
            yield instruction
            for name in instruction.called("calls"):
                yield from self._with_fused(self.computations[name])


def parse(text: str) -> Module:
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", dict[str, Instruction]()
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY ")):
            name = line.removeprefix("ENTRY ").split(" ", 1)[0].lstrip("%")
            current = computations[name] = {}
            entry = name if line.startswith("ENTRY ") else entry
        elif line.startswith("  ") and " = " in line and computations:
            instruction = _instruction(line)
            current[instruction.name] = instruction
    return Module(computations, entry, _frames(text))


def _instruction(line: str) -> Instruction:
    """`[ROOT] %NAME = SHAPE OPCODE(OPERANDS), ATTRIBUTES`."""
    left, right = line.strip().split(" = ", 1)
    end = _closing(right, 0) if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    written = rest[opening + 1 : closing - 1]
    operands = () if rest.startswith("constant(") else tuple(_OPERAND.findall(written))
    return Instruction(
        left.removeprefix("ROOT ").lstrip("%"), rest[:opening], shape, operands, written, rest[closing:]
    )


def _closing(text: str, opening: int) -> int:
    """The position after the parenthesis that closes the one at `opening`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    raise ValueError(f"No closing parenthesis in {text[:200]!r}")


def _is_whole_number(instruction: Instruction) -> bool:
    return instruction.opcode == "constant" and re.fullmatch(r"-?\d+", instruction.written) is not None


def _frames(text: str) -> dict[int, tuple[Place, int]]:
    """From the tables before the first computation. Frames name their caller by its number plus one."""
    head = text[: text.find("\n%")] if "\n%" in text else ""
    tables = {part.split("\n", 1)[0]: part for part in head.split("\n\n")}
    files, functions = (
        {int(n): s for n, s in _NAMED.findall(tables.get(t, ""))} for t in ("FileNames", "FunctionNames")
    )
    locations = {
        int(number): Place(files.get(int(file), ""), functions.get(int(function), ""), int(line))
        for number, file, function, line in _LOCATION.findall(tables.get("FileLocations", ""))
    }
    return {
        int(number): (locations[int(location)], int(parent or 1) - 1)
        for number, location, parent in _FRAME.findall(tables.get("StackFrames", ""))
        if int(location) in locations
    }
