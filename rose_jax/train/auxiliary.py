"""A self-supervised head beside any objective, for test-time methods that go on training it (TTT, TTT++).

"rotation": a second last stage of the network and four outputs that tell how an image was turned. "simclr": a small MLP
on the features, in which two views of an image shall be alike. One head serves all tasks, as neither knows classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rose_jax.data.augment import views
from rose_jax.errors import UserError, unknown
from rose_jax.models.heads import head_logits, init_head, init_mlp, mlp
from rose_jax.train import losses
from rose_jax.types import (
    Batch,
    Encoder,
    Key,
    LossResult,
    Objective,
    Parts,
    Prev,
    PyTree,
    Snapshot,
    StageView,
    Task,
    Trainable,
)

ROTATION, SIMCLR = "rotation_head", "simclr_head"  # what Snapshot.extra has of them


class Auxiliary(NamedTuple):
    """An auxiliary task. `head` is what of it has gradients, `stats` the running statistics of its own layers."""

    name: str  # in Snapshot.extra, whose value is {"head", "stats"}
    weight: float  # of its loss
    begin: Callable[[Key, PyTree], tuple[PyTree, PyTree]]  # (key, encoder's variables) -> head, stats
    # (key, uint8 images [n, ...], mask [n]) -> normalised images [m, ...], labels [m], mask [m]
    batch: Callable[[Key, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
    # (head, stats, encoder's variables, batch) -> loss [], stats, the encoder's batch_stats
    loss: Callable[[PyTree, PyTree, PyTree, Any], tuple[jax.Array, PyTree, PyTree]]


def with_head(objective: Objective, parts: Parts, kind: str) -> Objective:
    """The objective plus a weighted auxiliary loss on images of the same batch.

    It is for objectives that train `encoder` and keep the encoder's running statistics and nothing else. The auxiliary
    batch passes in statistics of its own, and by `moves_statistics` moves the running ones too.
    """
    task_of = {"rotation": rotation, "simclr": simclr}
    if kind not in task_of:
        raise unknown("auxiliary head", kind, task_of)
    auxiliary = task_of[kind](parts)

    def begin(key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        trainable, stats = objective.begin(key, prev, task)
        if prev is None:
            variables = {"params": trainable["encoder"], "batch_stats": stats}
            head, own = auxiliary.begin(jax.random.fold_in(key, 1), variables)
        else:
            head, own = (prev.extra[auxiliary.name][part] for part in ("head", "stats"))
        return trainable | {auxiliary.name: head}, {"encoder": stats, "auxiliary": own}

    def batch(key: Key, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
        made = objective.batch(key, images, labels, mask, task)
        return made._replace(extra={"objective": made.extra, "auxiliary": auxiliary.batch(key, images, mask)})

    def loss(trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key) -> LossResult:
        own_batch = batch._replace(extra=batch.extra["objective"])
        total, found = objective.loss(others(trainable), kept["encoder"], prev, own_batch, task, key)
        variables = {"params": trainable["encoder"], "batch_stats": found.kept}
        term, own, stats = auxiliary.loss(
            trainable[auxiliary.name], kept["auxiliary"], variables, batch.extra["auxiliary"]
        )
        terms = found.terms | {kind: term}
        kept = {"encoder": stats, "auxiliary": own}
        return total + auxiliary.weight * term, found._replace(kept=kept, terms=terms)

    def finish(trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task) -> Snapshot:
        snapshot = objective.finish(others(trainable), kept["encoder"], prev, view, task)
        own = {"head": trainable[auxiliary.name], "stats": kept["auxiliary"]}
        return snapshot._replace(extra=snapshot.extra | {auxiliary.name: own})

    def others(trainable: Trainable) -> Trainable:
        return {name: value for name, value in trainable.items() if name != auxiliary.name}

    return objective._replace(begin=begin, batch=batch, loss=loss, finish=finish)


def rotation(parts: Parts) -> Auxiliary:
    """TTT (Sun et al., ICML 2020): how often was the augmented image turned by 90 degrees?"""
    encoder, options = parts.encoder, parts.config.rotation
    if encoder.tail is None:
        raise UserError(
            "This encoder cannot have a rotation head: it has no last stage to copy. Use resnet18 or tiny."
        )
    tail = encoder.tail

    def begin(key: Key, variables: PyTree) -> tuple[PyTree, PyTree]:
        """The branch starts as a copy of the network's own last stage."""
        out = init_head("linear", key, views.ROTATIONS, encoder.feature_dim)
        return {"branch": last_stage(variables["params"]), "out": out}, last_stage(variables["batch_stats"])

    def batch(key: Key, images: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        # The objective's own key: where it augments images and no more, these are the same images.
        return turned(jax.random.fold_in(key, 1), parts.transform(key, images), mask, options.turns)

    def loss(head: PyTree, stats: PyTree, variables: PyTree, batch: Any) -> tuple[jax.Array, PyTree, PyTree]:
        term, stats, seen = rotation_loss(encoder, head, stats, variables, batch, "batch")
        if not options.moves_statistics:
            return term, stats, variables["batch_stats"]
        return term, stats, seen | last_stage(variables["batch_stats"])  # which these images do not pass

    def last_stage(tree: PyTree) -> PyTree:
        return {name: tree[name] for name in tail.layers if name in tree}

    return Auxiliary(ROTATION, options.weight, begin, batch, loss)


def turned(key: Key, images: jax.Array, mask: jax.Array, turns: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """All four rotations of each image, or one at random: images [m, h, h, 3], labels [m], mask [m]."""
    if turns == "all":
        each, labels = views.rotations(images, jnp.zeros(len(images), jnp.int32))
        return each, labels, jnp.repeat(mask, views.ROTATIONS)
    each, labels = views.turn_each(key, images)
    return each, labels, mask


def rotation_loss(
    encoder: Encoder,
    head: PyTree,
    stats: PyTree,
    variables: PyTree,
    batch: tuple[jax.Array, jax.Array, jax.Array],
    norm: str,
) -> tuple[jax.Array, PyTree, PyTree]:
    """Mean cross-entropy of the branch's four outputs, its running statistics and the encoder's; batch: of `turned`."""
    images, labels, mask = batch
    assert encoder.tail is not None
    out, seen = encoder.apply(variables, images, norm=norm, mask=mask)
    branch = {"params": head["branch"], "batch_stats": stats}
    feature, stats = encoder.tail.apply(branch, out["layer3"], norm=norm, mask=mask)
    everything = jnp.ones(views.ROTATIONS, bool)
    term = losses.cross_entropy_among(head_logits(head["out"], feature), labels, mask, everything)
    return term, stats, seen


def simclr(parts: Parts) -> Auxiliary:
    """TTT++ (Liu et al., NeurIPS 2021): which two of the batch's views are of one image?

    Its authors classify the same views. Here the objective has images of its own, which look little like views; running
    statistics of both would fit neither, and features of test images would not be those that the projector was trained on.
    """
    encoder, options = parts.encoder, parts.config.simclr

    def begin(key: Key, variables: PyTree) -> tuple[PyTree, PyTree]:
        dim = encoder.feature_dim
        return init_mlp(key, dim, options.hidden or dim, options.out), {}

    def batch(key: Key, images: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        pairs = parts.normalise(views.simclr_pair(jax.random.fold_in(key, 1), images))
        return pairs, jnp.zeros(len(pairs), jnp.int32), jnp.repeat(mask, 2)

    def loss(head: PyTree, stats: PyTree, variables: PyTree, batch: Any) -> tuple[jax.Array, PyTree, PyTree]:
        images, _, mask = batch
        out, seen = encoder.apply(variables, images, norm="batch", mask=mask)
        after = seen if options.moves_statistics else variables["batch_stats"]
        return losses.nt_xent(mlp(head, out["feature"]), mask, options.temperature), stats, after

    return Auxiliary(SIMCLR, options.weight, begin, batch, loss)
