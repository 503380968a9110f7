"""FeTrIL with a softmax layer instead of support vector machines, as in PyCIL's and FeCAM's ports of it.

It is trained at every stage on features and pseudo-features as they are, from the rows that the stage before has left.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.data.order import generator
from rose_jax.models.heads import head_logits
from rose_jax.statistics.translation import features_of_all_classes
from rose_jax.train import losses, optimizers
from rose_jax.train.schedule import decayed
from rose_jax.types import Array, Classifier, ClassMemory, Parts, PyTree, StageView

STEPS_PER_CALL = 32  # one program whatever the number of features
_ORDER, _INIT = 2, 3  # purposes of generator("stream", seed, stage, ...); run/scoring.py has 1

Feed = tuple[np.ndarray, np.ndarray, np.ndarray]  # features [k, b, d], labels [k, b], mask [k, b]


def make(parts: Parts) -> Classifier:
    options, seed = parts.config.fetril, parts.config.seed
    schedule = options.fc
    sgd = partial(
        optimizers.network, "sgd", weight_decay=schedule.weight_decay, momentum=parts.config.train.momentum
    )
    run = make_steps(sgd)

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        trained = view.snapshots[view.stage].head
        if previous is None and "bias" in trained:  # frozen.head=linear: the ports' first layer
            return {name: trained[name] for name in ("weight", "bias")}
        features, labels = features_of_all_classes(memory, view, options.fc_nearest)
        features, labels = features.astype(np.float32), labels.astype(np.int32)
        head = grown(previous, memory, view.stage, generator("stream", seed, view.stage, _INIT))
        state, seen = sgd(0.0).init(head), np.int32((np.asarray(memory.origin) >= 0).sum())
        order = generator("stream", seed, view.stage, _ORDER)
        for epoch in range(schedule.epochs):
            lr = np.float32(decayed(schedule, epoch))
            for rows, mask in calls(order.permutation(len(features)), options.fc_batch_size):
                view.pause()
                head, state = run(head, state, (features[rows], labels[rows], mask), lr, seen)
        return head

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        return jnp.where((memory.origin >= 0)[None, :], head_logits(params, feature), -jnp.inf)

    return Classifier(fit, logits)


def grown(previous: PyTree | None, memory: ClassMemory, stage: int, rng: np.random.Generator) -> dict[str, Array]:
    """Rows of old classes as they were; the others uniform with variance 1/d, without a bias."""
    classes, dim = np.shape(memory.mean)
    limit = (3 / dim) ** 0.5
    weight, bias = rng.uniform(-limit, limit, (classes, dim)).astype(np.float32), np.zeros(classes, np.float32)
    if previous is None:
        return {"weight": weight, "bias": bias}
    old = np.asarray(memory.origin) < stage
    weight = np.where(old[:, None], previous["weight"], weight)
    return {"weight": weight, "bias": np.where(old, previous["bias"], bias)}


def calls(order: np.ndarray, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows [k, b] and a mask [k, b] that is False beyond the epoch's end: its last batch is smaller."""
    size = STEPS_PER_CALL * batch_size
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        shape = (STEPS_PER_CALL, batch_size)
        yield np.resize(chosen, shape), (np.arange(size) < len(chosen)).reshape(shape)


def make_steps(sgd: Callable[[Array], optax.GradientTransformation]) -> Callable[..., tuple[PyTree, PyTree]]:
    """(head, state, feed, lr, seen) -> head and state after the steps of which the mask has a row."""

    @jax.jit
    def run(head: PyTree, state: PyTree, feed: Feed, lr: jax.Array, seen: jax.Array) -> tuple[PyTree, PyTree]:
        def loss(head: PyTree, feature: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
            return losses.cross_entropy(head_logits(head, feature), labels, mask, 0, seen)

        def step(carry: tuple[PyTree, PyTree], batch: Feed) -> tuple[tuple[PyTree, PyTree], None]:
            head, state = carry
            updates, changed = sgd(lr).update(jax.grad(loss)(head, *batch), state, head)
            after = optax.apply_updates(head, updates), changed
            filled = batch[2].any()
            return jax.tree.map(lambda new, old: jnp.where(filled, new, old), after, carry), None

        return jax.lax.scan(step, (head, state), feed)[0]

    return run
