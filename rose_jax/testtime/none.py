"""No evolution: every image is scored by the same prototypes or head."""

from rose_jax.config import Config
from rose_jax.types import TestTime


def make(config: Config) -> TestTime:
    def prepare(memory, stage, drift_map, params, key, classifier):
        return {"memory": memory, "params": classifier.evolve(params, memory, drift_map, None)}

    def step(state, batch, classifier):
        return state, classifier.logits(state["params"], state["memory"], batch.z_new)

    def carry(state, memory, classifier):
        return memory, state["params"]

    return TestTime(False, prepare, step, carry, lambda state: {})
