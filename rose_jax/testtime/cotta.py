"""CoTTA (Wang et al., CVPR 2022): a student learns from its own moving average, and now and then forgets what it learned.

The teacher's logits are averaged over augmentations where the trained network (the anchor) is unsure of the batch. All
weights learn; then teacher <- 0.999 teacher + 0.001 student, then each weight of the student returns to its trained value
with probability 0.01. Every pass is under the statistics of its own batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.data.augment import cotta as augmentation
from rose_jax.testtime.adapting import Changing, Frame, Method, Prediction, Shown, Work, adaptation
from rose_jax.testtime.reading import Reader
from rose_jax.testtime.source import on_task
from rose_jax.train import losses
from rose_jax.train.optimizers import network
from rose_jax.types import Adaptation, Key, Model, Parts, PyTree, StageView

QUANTILE, BELOW = 0.05, 0.05  # the threshold is this quantile of the confidences on D_t, less this


def make(parts: Parts) -> Adaptation:
    options, encoder, kind = parts.config.cotta, parts.encoder, parts.config.testtime.logits
    optimizer = network(options.optimizer, options.lr, 0.0, options.momentum)

    def weights(model: Model) -> PyTree:
        """All that learns, the head only where it is read."""
        return {"encoder": model.variables["params"], "head": model.head if kind == "head" else None}

    def lasting(model: Model) -> PyTree:
        own = weights(model)
        return {"student": own, "teacher": own, "moments": optimizer.init(own)}

    def read(
        own: PyTree, frame: Frame, images: jax.Array, shown: Shown, reader: Reader
    ) -> tuple[jax.Array, jax.Array]:
        """Logits and scores, both [n, C]."""
        variables = frame.model.variables | {"params": own["encoder"]}
        feature = encoder.apply(variables, images, norm="batch", mask=shown.valid)[0]["feature"]
        return reader.logits(feature, own["head"]), reader.scores(feature)

    def target(teacher: PyTree, frame: Frame, shown: Shown, reader: Reader, unsure: jax.Array) -> Any:
        """The teacher's logits and scores: of the batch, or if unsure their mean over augmentations."""
        plain = read(teacher, frame, shown.images, shown, reader)

        def averaged() -> Any:
            pixels = shown.raw.astype(jnp.float32) / 255

            def add(total: Any, key: Key) -> tuple[Any, None]:
                images = parts.normalise(255 * augmentation.augment(key, pixels))
                return jax.tree.map(jnp.add, total, read(teacher, frame, images, shown, reader)), None

            keys = jax.random.split(jax.random.fold_in(shown.key, 0), options.augmentations)
            total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, plain), keys)
            return jax.tree.map(lambda x: x / options.augmentations, total)

        return jax.lax.cond(unsure, averaged, lambda: plain)

    def is_unsure(frame: Frame, shown: Shown, reader: Reader) -> jax.Array:
        logits, _ = read(weights(frame.model), frame, shown.images, shown, reader)
        return losses.masked_mean(confidence(logits), shown.valid) < frame.fitted

    def update(
        own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        student, teacher, moments = (own.lasting[name] for name in ("student", "teacher", "moments"))
        unsure = is_unsure(frame, shown, reader)
        wanted, scores = target(teacher, frame, shown, reader, unsure)

        def loss(student: PyTree) -> jax.Array:
            logits, _ = read(student, frame, shown.images, shown, reader)
            each = losses.soft_entropies(wanted, logits, reader.seen)
            if options.loss == "symmetric":
                each = (each + losses.soft_entropies(logits, wanted, reader.seen)) / 2
            return losses.masked_mean(each, shown.valid)

        updates, moments = optimizer.update(jax.grad(loss)(student), moments, student)
        student = optax.apply_updates(student, updates)
        teacher = moving_average(teacher, student, options.teacher)
        student = restored(jax.random.fold_in(shown.key, 1), student, weights(frame.model), options.restore)
        augmented = unsure.astype(jnp.int32)
        work = Work(3 + options.augmentations * augmented, 1, 1, {"augmented_batches": augmented})
        after = {"student": student, "teacher": teacher, "moments": moments}
        return own._replace(lasting=after), Prediction(scores, wanted), work

    def predict(own: Changing, frame: Frame, shown: Shown, reader: Reader) -> Prediction:
        unsure = is_unsure(frame, shown, reader)
        logits, scores = target(own.lasting["teacher"], frame, shown, reader, unsure)
        # The anchor's pass is that of the update, and XLA makes it once.
        return Prediction(scores, logits, 1 + options.augmentations * unsure.astype(jnp.int32))

    def confidences(variables: PyTree, reader: Reader, images: jax.Array, mask: jax.Array) -> jax.Array:
        feature = encoder.apply(variables, images, norm="batch", mask=mask)[0]["feature"]
        return confidence(reader.logits(feature))

    over_task = on_task(parts, confidences)

    def fit(view: StageView, reader: Reader, key: Key) -> PyTree:
        """The mean confidence of the anchor below which a batch is augmented."""
        if options.threshold == "fixed":
            return np.asarray(options.confidence, np.float32)
        batches = over_task(view, reader, key, parts.config.testtime.batch_size)
        found = np.concatenate([np.asarray(sure)[mask] for sure, mask in batches])
        view.notes["threshold_forwards"] = len(found)
        return np.asarray(np.quantile(found, QUANTILE) - BELOW, np.float32)

    return adaptation(parts, Method("before", lasting, update, predict, fit=fit, extra=("augmented_batches",)))


def confidence(logits: jax.Array) -> jax.Array:
    """max_c p_c [n] of logits [n, C]."""
    return jax.nn.softmax(logits, -1).max(-1)


def moving_average(teacher: PyTree, student: PyTree, keep: float) -> PyTree:
    return jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, teacher, student)


def restored(key: Key, student: PyTree, trained: PyTree, probability: float) -> PyTree:
    """Each single weight returns to its trained value with this probability."""
    leaves, structure = jax.tree.flatten(student)
    ends = np.cumsum([leaf.size for leaf in leaves])
    # One draw for all weights: XLA takes seconds to compile twenty.
    returns = jnp.split(jax.random.uniform(key, (int(ends[-1]),)) < probability, ends[:-1])
    chosen = [
        jnp.where(draw.reshape(new.shape), old, new)
        for draw, new, old in zip(returns, leaves, jax.tree.leaves(trained), strict=True)
    ]
    return jax.tree.unflatten(structure, chosen)
