"""Programs that are compiled ahead of their first call: once each, announced, outside the clock, and counted."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
from jax.stages import Compiled, Wrapped

from rose_jax.runtime.target import Target, target

# Minutes that compiling takes on an accelerator's host, about: for a training step, and for anything else.
STEP_MINUTES, OTHER_MINUTES = 3, 1


class Programs:
    def __init__(self, what: str = "", minutes: int = OTHER_MINUTES, *, convolves: bool = False) -> None:
        """what: that these programs do, for the reader of the log. convolves: most of it is an encoder's."""
        self._compiled: dict[str, Compiled] = {}
        self._what, self._minutes, self._convolves = what, minutes, convolves

    def compiled(self, name: str, function: Wrapped, *args: Any) -> Callable[..., Any]:
        """The executable of a jitted function for arguments like these.

        A name stands for one set of shapes and placements: arguments of any other raise an error when it is called.
        """
        if name not in self._compiled:
            self._announce(name)
            options = for_convolutions() if self._convolves else None
            self._compiled[name] = function.lower(*args).compile(compiler_options=options)
        return self._compiled[name]

    def _announce(self, name: str) -> None:
        """A CPU compiles in seconds, but for a training step."""
        accelerator = target().platform != "cpu"
        if accelerator or self._minutes > OTHER_MINUTES:
            unit = "minute" if self._minutes == 1 else "minutes"
            wait = f" (about {self._minutes} {unit} the first time)" if accelerator else ""
            logging.info("compiling %s, %s%s ...", self._what, name, wait)

    def __len__(self) -> int:
        return len(self._compiled)


def for_convolutions() -> dict[str, str | bool] | None:
    """What XLA should be told when it compiles an encoder, or None: on a CPU, to keep away from its library YNNPACK.

    That computes one convolution on one core, where XLA's own use all, and is no faster on one (scripts/bench.py conv).
    """
    return _without_ynnpack() if target() == Target("cpu", 1) else None


@functools.cache
def _without_ynnpack() -> dict[str, str | bool] | None:
    """None for versions of XLA that do not know the library."""
    options: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": ""}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return None
    return options
