"""Compiles programs, once each, and keeps what was found in a folder: a long sweep goes on where it was stopped."""

import dataclasses
import gzip
import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.stages import Lowered

from rose_jax.compile.cost import cost
from rose_jax.compile.describe import Topology
from rose_jax.compile.hlo import parse
from rose_jax.compile.programs import Program
from rose_jax.runtime.files import write_atomic, write_json

PARTS = 5  # that are named of each program
_TOO_LARGE = ("RESOURCE_EXHAUSTED", "Ran out of memory")
_FLOAT = re.compile(r"dense<(-?\d\.\d+E[+-]\d+|-?\d\.\d+e[+-]\d+)> : tensor<(?:f32|bf16|f64)>")
_SPECIAL = (0.0, 1.0)  # with which the compiler may leave operations out


@dataclass
class Found:
    """What the compiler says of a program, per device. Bytes and cycles are of one call; loops whose number of rounds
    is known only when it runs count once."""

    fits: bool
    seconds: float  # of compiling
    message: str = ""  # why it does not fit
    code: int = 0
    arguments: int = 0
    temporary: int = 0
    outputs: int = 0  # beside what takes the place of an argument
    flops: int = 0
    cycles: int = 0
    collectives: dict[str, int] = field(default_factory=dict)
    parts: list[tuple[str, int]] = field(default_factory=list)
    loops: list[tuple[str, int | None]] = field(default_factory=list)
    without_estimate: dict[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        return self.code + self.arguments + self.temporary + self.outputs

    def reading(self, text: str) -> "Found":
        """With what the compiled program's text says of its cost."""
        spent = cost(parse(text))
        return dataclasses.replace(
            self,
            flops=spent.flops,
            cycles=spent.cycles,
            collectives=spent.collectives,
            parts=[(part.name, part.cycles) for part in spent.parts[:PARTS]],
            loops=[(name, trips) for name, trips in spent.loops if trips != 1],
            without_estimate=spent.without_estimate,
        )


def find(program: Program, topology: Topology, folder: Path) -> Found:
    """From the folder, if a program of this text was compiled before."""
    lowered = program.lower()
    path = folder / f"{digest(lowered.as_text(), topology)}.json"
    compiled_text = path.with_suffix(".hlo.gz")
    try:
        known = Found(**json.loads(path.read_text()))
        # Read anew each time: a cost that this version counts otherwise needs no compiling.
        return (
            known.reading(gzip.decompress(compiled_text.read_bytes()).decode())
            if compiled_text.exists()
            else known
        )
    except (OSError, EOFError, ValueError, TypeError):
        pass
    found, text = compiled(lowered)
    folder.mkdir(parents=True, exist_ok=True)
    if text:
        write_atomic(compiled_text, lambda file: file.write(gzip.compress(text.encode())))
    write_json(path, dataclasses.asdict(found))
    return found


def compiled(lowered: Lowered) -> tuple[Found, str]:
    """What was found, and the compiled program's text; none if it does not fit."""
    begun = time.perf_counter()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not any(word in str(error) for word in _TOO_LARGE):
            raise
        return Found(False, time.perf_counter() - begun, _first_sentence(str(error))), ""
    seconds = time.perf_counter() - begun
    memory: Any = program.memory_analysis()
    found = Found(
        True,
        seconds,
        code=memory.generated_code_size_in_bytes,
        arguments=memory.argument_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    )
    text = program.as_text() or ""
    return found.reading(text), text


def digest(text: str, topology: Topology) -> str:
    """Of a program's StableHLO. Settings that differ by the value of a weight or a rate are one program."""

    def neutral(match: re.Match) -> str:
        return match[0] if abs(float(match[1])) in _SPECIAL else match[0].replace(match[1], "x")

    parts = (topology.name, topology.compiler, _FLOAT.sub(neutral, text))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def _first_sentence(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return next((line for line in lines if "memory" in line), lines[0])[:300]
