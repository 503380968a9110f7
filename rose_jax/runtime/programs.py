"""Programs that are compiled ahead of their first call: once each, outside the clock, and counted."""

from collections.abc import Callable
from typing import Any

from jax.stages import Compiled, Wrapped


class Programs:
    def __init__(self) -> None:
        self._compiled: dict[str, Compiled] = {}

    def compiled(self, name: str, function: Wrapped, *args: Any) -> Callable[..., Any]:
        """The executable of a jitted function for arguments like these.

        A name stands for one set of shapes and placements: arguments of any other raise an error when it is called.
        """
        if name not in self._compiled:
            self._compiled[name] = function.lower(*args).compile()
        return self._compiled[name]

    def __len__(self) -> int:
        return len(self._compiled)
