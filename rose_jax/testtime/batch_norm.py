"""Normalises every test batch by its own statistics and adapts nothing: the control of methods that do both."""

from rose_jax.testtime.adapting import Changing, Frame, Method, Prediction, Shown, Work, adaptation
from rose_jax.testtime.reading import Reader
from rose_jax.types import Adaptation, Encoder, Parts, PyTree


def make(parts: Parts) -> Adaptation:
    def update(
        own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        return own, predict(own, frame, shown, reader)._replace(forwards=0), Work(1, 0, 0)

    def predict(own: Changing, frame: Frame, shown: Shown, reader: Reader) -> Prediction:
        return read_batch(parts.encoder, frame.model.variables, shown, reader)

    return adaptation(parts, Method("before", lambda model: None, update, predict))


def read_batch(
    encoder: Encoder, variables: PyTree, shown: Shown, reader: Reader, *, norm: str = "batch"
) -> Prediction:
    """What a network makes of the batch. The running statistics are not changed; norm="batch" does without them."""
    feature = encoder.apply(variables, shown.images, norm=norm, mask=shown.valid)[0]["feature"]
    return Prediction(reader.scores(feature), reader.logits(feature), forwards=1)
