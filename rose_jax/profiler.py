"""--profile: a trace of a few training steps, for TensorBoard's profiler or Perfetto."""

from pathlib import Path

import jax

WARM_UP = 3  # steps that compile and fill caches


class Profiler:
    def __init__(self, folder: Path, steps: int):
        self._folder, self._left, self._seen, self._running = folder, steps, 0, False

    def after_step(self, step: int) -> None:
        """Starts after the warm-up of whatever task is trained first, stops after `steps` calls."""
        self._seen += 1
        if self._running:
            self._left -= 1
            if self._left == 0:
                self.close()
        elif self._left and self._seen == WARM_UP:
            self._folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def close(self) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            self._left = 0
