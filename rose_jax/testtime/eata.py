"""EATA (Niu et al., ICML 2022): TENT on images that are reliable and not redundant, held by the Fisher information.

Kept is image i with H_i < E0 = 0.4 ln C and |cos(p_i, m)| < epsilon, where m is a running mean of kept predictions.
L = mean over the kept of e^(E0 - H_i) H_i, the weight without a gradient, + beta sum_j F_j (theta_j - theta_0j)^2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rose_jax.config import EataOptions
from rose_jax.models.heads import normalize
from rose_jax.models.norm import norm_params, with_norm_params
from rose_jax.testtime import norms
from rose_jax.testtime.adapting import Changing, FitMethod, Frame, Method, Prediction, Shown, Work, adaptation
from rose_jax.testtime.reading import Reader
from rose_jax.testtime.source import on_task
from rose_jax.train import losses
from rose_jax.train.optimizers import network
from rose_jax.types import Adaptation, Array, Key, Model, Parts, PyTree, StageView

MARGIN = 1.3  # times 1 / sqrt(C), the cosine of a sure prediction with a uniform mean
KEEP = 0.9  # of the running mean in each step


class Filter(NamedTuple):
    kept: jax.Array  # bool [n]
    weight: jax.Array  # [n], e^(E0 - H_i)
    mean: jax.Array  # [C], m after the batch
    entropy: jax.Array  # [n], H_i


def make(parts: Parts) -> Adaptation:
    options, classes = parts.config.eata, parts.scenario.num_classes
    optimizer = network(options.optimizer, options.lr, 0.0, options.momentum)
    begin = norms.begin(optimizer)

    def lasting(model: Model) -> PyTree:
        return begin(model) | {"mean": jnp.zeros(classes)}

    def update(
        own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        before, trained = own.lasting["norms"], norm_params(frame.model.variables["params"])

        def loss(scales: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Filter]]:
            feature, logits = norms.forward(parts.encoder, frame, scales, shown, reader)
            found = select(logits, reader.seen, shown.valid, own.lasting["mean"], options)
            total = losses.masked_mean(found.weight * found.entropy, found.kept)
            total += options.fisher_weight * anchored(scales, trained, frame.fitted)
            return total, (feature, logits, found)

        grads, (feature, logits, found) = jax.grad(loss, has_aux=True)(before)
        updates, moments = optimizer.update(grads, own.lasting["moments"], before)
        after = {"norms": optax.apply_updates(before, updates), "moments": moments, "mean": found.mean}
        kept = found.kept.sum(dtype=jnp.int32)
        # Without a kept image nothing moves, the optimizer's moments included.
        after = jax.tree.map(lambda new, old: jnp.where(kept > 0, new, old), after, own.lasting)
        work = Work(1, 1, (kept > 0).astype(jnp.int32), {"kept_images": kept})
        return own._replace(lasting=after), Prediction(reader.scores(feature), logits), work

    predict, fisher = norms.predictor(parts), make_fisher(parts)
    return adaptation(parts, Method("before", lasting, update, predict, fit=fisher, extra=("kept_images",)))


def select(logits: jax.Array, seen: jax.Array, valid: jax.Array, mean: Array, options: EataOptions) -> Filter:
    """Which images are kept. logits [n, C], seen [C], valid [n]; mean: m [C], zeros while it is unset."""
    classes = seen.sum(dtype=logits.dtype)
    limit = options.entropy_share * jnp.log(classes)
    epsilon = MARGIN * jax.lax.rsqrt(classes) if options.margin == "classes" else options.epsilon
    entropy = losses.entropies(logits, seen)
    probability = jax.nn.softmax(logits, -1)
    unset = jnp.sum(mean) == 0
    near = jnp.abs(normalize(probability) @ normalize(jnp.asarray(mean)[None, :])[0])
    kept = valid & (entropy < limit) & (unset | (near < epsilon))
    count = kept.sum()
    batch_mean = jnp.sum(jnp.where(kept[:, None], probability, 0.0), 0) / jnp.maximum(count, 1)
    moved = jnp.where(unset, batch_mean, KEEP * mean + (1 - KEEP) * batch_mean)
    weight = jax.lax.stop_gradient(jnp.exp(limit - entropy))
    return Filter(kept, weight, jax.lax.stop_gradient(jnp.where(count > 0, moved, mean)), entropy)


def anchored(scales: PyTree, trained: PyTree, fisher: PyTree) -> jax.Array:
    """sum_j F_j (theta_j - theta_0j)^2."""
    terms = jax.tree.map(lambda f, new, old: jnp.sum(f * jnp.square(new - old)), fisher, scales, trained)
    return sum(jax.tree.leaves(terms), start=jnp.zeros(()))


def make_fisher(parts: Parts) -> FitMethod:
    """F [like the norms]: mean over batches of D_t of (the gradient of the batch's mean loss on its own labels)^2."""
    options, encoder = parts.config.eata, parts.encoder

    def squared(variables: PyTree, reader: Reader, images: jax.Array, mask: jax.Array) -> PyTree:
        def loss(scales: PyTree) -> jax.Array:
            own = variables | {"params": with_norm_params(variables["params"], scales)}
            out, _ = encoder.apply(own, images, norm="batch", mask=mask)
            logits = reader.logits(out["feature"])
            return losses.cross_entropy_among(logits, logits.argmax(1), mask, reader.seen)

        return jax.tree.map(jnp.square, jax.grad(loss)(norm_params(variables["params"])))

    over_task = on_task(parts, squared)

    def fit(view: StageView, reader: Reader, key: Key) -> PyTree:
        total = jax.tree.map(jnp.zeros_like, norm_params(view.snapshots[view.stage].variables["params"]))
        batches = images = 0
        for found, mask in over_task(view, reader, key, options.fisher_batch):
            total = jax.tree.map(jnp.add, total, found)
            batches, images = batches + 1, images + int(mask.sum())
            if images >= options.fisher_images:
                break
        view.notes |= {"fisher_forwards": images, "fisher_backwards": images}
        return jax.tree.map(lambda leaf: leaf / max(batches, 1), total)

    return fit
