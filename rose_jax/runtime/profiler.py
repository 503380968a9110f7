"""--profile: a trace of a few training steps, for TensorBoard's profiler or Perfetto."""

from pathlib import Path
from typing import Any

import jax

WARM_UP = 3  # calls that compile and fill caches


class Profiler:
    def __init__(self, folder: Path, steps: int):
        self._folder, self._steps, self._calls = folder, steps, 0
        self._first: int | None = None  # step at which the trace began

    def after_step(self, step: int, state: Any) -> None:
        """Starts the trace after the warm-up of the first task that is trained, ends it `steps` steps later."""
        self._calls += 1
        if self._first is not None:
            if not 0 <= step - self._first < self._steps:
                self._stop(state)
        elif self._steps and self._calls == WARM_UP:
            jax.block_until_ready(state)  # earlier steps do not belong in the trace
            self._folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._folder))
            self._first = step

    def close(self) -> None:
        if self._first is not None:
            self._stop(None)

    def _stop(self, state: Any) -> None:
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        self._first, self._steps = None, 0
