"""Stand-ins that tests build plug-ins from; mypy compares them with the Protocols of rose_jax/types.py."""

import jax.numpy as jnp
import numpy as np

from rose_jax.data.scenario import Scenario, make_scenario
from rose_jax.types import Parts, StageView


def make_parts(config, encoder, num_classes, image_shape, transform=None, normalise=None):
    """Parts as experiment.make_features builds them, from whatever a test has."""
    whole = not config.scenario.task_sizes and num_classes % config.scenario.tasks  # a test that has one task
    scenario = (
        Scenario(np.arange(num_classes), (num_classes,)) if whole else make_scenario(config.scenario, num_classes)
    )
    scaled = lambda images: images.astype(jnp.float32) / 255  # noqa: E731
    return Parts(
        config,
        encoder,
        scenario,
        image_shape,
        normalise or scaled,
        transform or (lambda key, images: scaled(images)),
    )


class FakeStage:
    """A types.StageView of what a test gives it, and no more: the one fake of a stage.

    images, labels: of D_t, shown in padded batches after `augment`; encode: (variables, images) -> features;
    train, test: features by encoder.
    """

    def __init__(
        self,
        stage=0,
        *,
        snapshots=(),
        encoder=None,
        images=(),
        labels=None,
        augment=lambda images: images,
        encode=None,
        train=None,
        test=None,
        batch_size=4,
    ):
        self.stage, self.snapshots, self.encoder, self.notes = stage, list(snapshots), encoder, {}
        self.images = images
        self.labels = np.zeros(len(images), np.int32) if labels is None else labels
        self.augment, self._encode, self.batch_size = augment, encode, batch_size
        self.train, self.test = train or {}, test or {}

    def pause(self):
        pass

    def train_batches(self, key, epochs, transform=None, batch_size=None):
        self.transform = transform  # that was asked for
        size = batch_size or self.batch_size
        for start in epochs * list(range(0, len(self.images), size)):
            rows = np.asarray(self.augment(self.images[start : start + size]))
            padding = np.full((size - len(rows), *rows.shape[1:]), 99, rows.dtype)  # must leave no trace
            labels = np.resize(self.labels[start : start + size], size)
            yield np.concatenate([rows, padding]), labels, np.arange(size) < len(rows)

    def encode(self, variables, images):
        return self._encode(variables, images)

    def encode_train(self, variables):
        return np.asarray(self.encode(variables, self.images)), self.labels

    def train_features(self, k):
        return self.train[k], self.labels

    def test_features(self, k, every=1):
        return self.test[k][::every]

    def test_seconds(self, k, every=1):
        return 0.0


def _compared(fake: FakeStage) -> StageView:
    """For mypy: the fake has all that the Protocol asks for."""
    return fake
