"""No evolution: every image is scored by the same prototypes or head."""

from rose_jax.config import Config
from rose_jax.types import TestTime


def make(config: Config) -> TestTime:
    def prepare(memory, stage, start, params, key):
        return {"memory": memory, "params": params}

    def step(state, batch, classifier):
        return state, classifier.logits(state["params"], state["memory"], batch.z_new)

    return TestTime(False, prepare, step, lambda state, memory: memory, lambda state: {})
