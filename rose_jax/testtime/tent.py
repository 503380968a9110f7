"""TENT (Wang et al., ICLR 2021): a step on the batch's mean entropy, by the norms' scales and biases alone."""

import jax
import optax

from rose_jax.testtime import norms
from rose_jax.testtime.adapting import Changing, Frame, Method, Prediction, Shown, Work, adaptation
from rose_jax.testtime.reading import Reader
from rose_jax.train import losses
from rose_jax.train.optimizers import network
from rose_jax.types import Adaptation, Parts, PyTree


def make(parts: Parts) -> Adaptation:
    options = parts.config.tent
    optimizer = network(options.optimizer, options.lr, 0.0, options.momentum)

    def update(
        own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        def loss(scales: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            """L = mean_i H(p_i)."""
            feature, logits = norms.forward(parts.encoder, frame, scales, shown, reader)
            return losses.masked_mean(losses.entropies(logits, reader.seen), shown.valid), (feature, logits)

        before = own.lasting["norms"]
        grads, (feature, logits) = jax.grad(loss, has_aux=True)(before)
        updates, moments = optimizer.update(grads, own.lasting["moments"], before)
        after = {"norms": optax.apply_updates(before, updates), "moments": moments}
        return own._replace(lasting=after), Prediction(reader.scores(feature), logits), Work(1, 1, 1)

    return adaptation(parts, Method("before", norms.begin(optimizer), update, norms.predictor(parts)))
