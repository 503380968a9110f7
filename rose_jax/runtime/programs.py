"""Programs that are compiled ahead of their first call: once each, announced, outside the clock, and counted."""

import logging
from collections.abc import Callable
from typing import Any

from jax.stages import Compiled, Wrapped

from rose_jax.runtime.target import target

# Minutes that compiling takes on an accelerator's host, about: for a training step, and for anything else.
STEP_MINUTES, OTHER_MINUTES = 3, 1


class Programs:
    def __init__(self, what: str = "", minutes: int = OTHER_MINUTES) -> None:
        """what: that these programs do, for the reader of the log."""
        self._compiled: dict[str, Compiled] = {}
        self._what, self._minutes = what, minutes

    def compiled(self, name: str, function: Wrapped, *args: Any) -> Callable[..., Any]:
        """The executable of a jitted function for arguments like these.

        A name stands for one set of shapes and placements: arguments of any other raise an error when it is called.
        """
        if name not in self._compiled:
            self._announce(name)
            self._compiled[name] = function.lower(*args).compile()
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
