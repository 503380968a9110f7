"""No adaptation: every image is scored by the same prototypes or head."""

from typing import NamedTuple

import jax

from rose_jax.types import Adaptation, Classifier, ClassMemory, End, Parts, PyTree, Start, StreamBatch


class Scored(NamedTuple):
    memory: ClassMemory
    params: PyTree  # the classifier's


def make(parts: Parts) -> Adaptation:
    def step(state: Scored, batch: StreamBatch, classifier: Classifier) -> tuple[Scored, jax.Array]:
        assert batch.z_new is not None
        return state, classifier.logits(state.params, state.memory, batch.z_new)

    return Adaptation(frozenset({"z_new"}), False, 0, begin, step, finish)


def begin(start: Start, classifier: Classifier) -> Scored:
    params = start.params
    if classifier.motion is not None:
        params = classifier.motion.follow(params, start.memory, start.drift_map, None)
    return Scored(start.memory, params)


def finish(state: Scored, classifier: Classifier) -> End:
    return End(state.memory, state.params, None)
