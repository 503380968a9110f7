"""Normalises every test batch by its own statistics and adapts nothing: the control of methods that do both."""

from typing import NamedTuple

import jax

from rose_jax.testtime import none
from rose_jax.types import Adaptation, Classifier, End, Parts, PyTree, Start, StreamBatch


class Network(NamedTuple):
    variables: PyTree
    scored: none.Scored


def make(parts: Parts) -> Adaptation:
    def init(start: Start, classifier: Classifier) -> Network:
        assert start.model is not None
        return Network(start.model.variables, none.begin(start, classifier))

    def step(state: Network, batch: StreamBatch, classifier: Classifier) -> tuple[Network, jax.Array]:
        """The running statistics are neither read nor changed."""
        assert batch.images is not None
        images = parts.normalise(batch.images)
        out, _ = parts.encoder.apply(state.variables, images, norm="batch", mask=batch.valid)
        return state, classifier.logits(state.scored.params, state.scored.memory, out["feature"])

    def finish(state: Network, classifier: Classifier) -> End:
        return none.finish(state.scored, classifier)

    return Adaptation(frozenset({"images"}), False, 0, init, step, finish)
