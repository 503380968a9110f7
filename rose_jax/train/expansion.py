"""Outputs beyond one per class: PASS's rotations, IL2A's mixtures, and both in FCS and RoSE's warm start.

With rotations a head has four rows per class (class c upright is row 4c); with mixtures one row per pair of the
task's own classes follows. Both blocks have their final size from the start; masks say which rows are in use.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rose_jax.data.augment import views
from rose_jax.models.heads import Head, renew_rows
from rose_jax.train import losses
from rose_jax.types import Batch, Encoder, MakeBatch, Parts, Task


class Expansion(NamedTuple):
    """How classes become outputs, and a batch becomes what is trained on."""

    classes: int  # C
    per_class: int  # outputs of a class
    pairs: tuple[int, int]  # outputs for mixtures, in the first task and in later ones
    batch: MakeBatch  # extra: the second view or None

    @property
    def lasting(self) -> int:
        """Rows of a head that outlive their task."""
        return self.per_class * self.classes

    def width(self, first_task: bool) -> int:
        return self.lasting + self.pairs[0 if first_task else 1]


def make_expansion(
    parts: Parts,
    *,
    rotate: bool,
    mix: bool,
    second_view: bool = False,
    mix_times: int = 4,
    mix_range: tuple[float, float] = views.MIX_RANGE,
) -> Expansion:
    """mix_times, mix_range: of `views.mix_classes`."""
    num_classes, sizes, transform = parts.scenario.num_classes, parts.scenario.sizes, parts.transform
    if not (rotate or mix or second_view):

        def plain(key: jax.Array, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
            return Batch(transform(key, images), labels, mask)

        return Expansion(num_classes, 1, (0, 0), plain)
    per_class = views.ROTATIONS if rotate else 1
    pairs = (views.n_pairs(sizes[0]), views.n_pairs(max(sizes[1:], default=1))) if mix else (0, 0)
    lasting = per_class * num_classes

    def turned(images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        return views.rotations(images, labels) if rotate else (images, labels)

    def batch(key: jax.Array, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
        """[B] -> the B images, or 4B rotated ones, and `mix_times` B mixed; the second view, rotated alike, in `extra`."""
        augment_key, mix_key, view_key = jax.random.split(key, 3)
        augmented = transform(augment_key, images)
        out_images, out_labels = turned(augmented, labels)
        out_mask = jnp.repeat(mask, per_class)
        if mix:
            mixed = views.mix_classes(
                mix_key, augmented, labels, task.offset, mask, times=mix_times, within=mix_range
            )
            out_images = jnp.concatenate([out_images, mixed.images])
            # A mixture that does not count has no pair: tasks of one class have no output that its label could name.
            out_labels = jnp.concatenate([out_labels, jnp.where(mixed.valid, lasting + mixed.pair, 0)])
            out_mask = jnp.concatenate([out_mask, mixed.valid])
        second = None
        if second_view:
            second, _ = turned(parts.normalise(views.second_view(view_key, images)), labels)
        return Batch(out_images, out_labels, out_mask, extra=second)

    return Expansion(num_classes, per_class, pairs, batch)


def outputs_among(
    expansion: Expansion, width: int, first: jax.Array | int, count: jax.Array | int, task: Task
) -> jax.Array:
    """bool [width]: the outputs of classes first .. first + count - 1, and of the task's mixtures."""
    index = jnp.arange(width)
    of_classes = (index >= expansion.per_class * first) & (index < expansion.per_class * (first + count))
    mixtures = task.n_new * (task.n_new - 1) // 2
    return of_classes | ((index >= expansion.lasting) & (index < expansion.lasting + mixtures))


def carry_head(expansion: Expansion, task: Task, previous: Head, fresh: Head) -> Head:
    """The previous head's rows of old classes; all others, and those of mixtures, from `fresh`."""
    width = len(fresh["weight"])
    padded = {
        name: jnp.concatenate([rows, fresh[name][len(rows) :]]) if rows.ndim else rows
        for name, rows in lasting_head(expansion, previous).items()
    }
    return renew_rows(padded, fresh, jnp.arange(width) < expansion.per_class * task.offset)


def lasting_head(expansion: Expansion, head: Head) -> Head:
    """Without the rows of the task's mixtures."""
    return {name: rows[: expansion.lasting] if rows.ndim else rows for name, rows in head.items()}


def contrast(
    encoder: Encoder,
    variables: Any,
    features: jax.Array,
    batch: Batch,
    temperature: float,
    denominator: str,
    lasting: int,
    extra_keys: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """Eq. 5 within the batch, or against its second view if there is one.

    The second view passes the same weights in batch statistics of its own and gets no gradient; mixtures take no
    part: they are the labels from `lasting` on. extra_keys: further keys [m, d] and their labels [m].
    """
    if batch.extra is None:
        mask = batch.mask & (batch.labels < lasting)
        return losses.supervised_contrastive(features, batch.labels, mask, temperature, denominator)
    n = len(batch.extra)
    labels, mask = batch.labels[:n], batch.mask[:n]
    keys = encoder.apply(variables, batch.extra, norm="batch", mask=mask)[0]["feature"]
    key_labels, key_mask = labels, mask
    if extra_keys is not None:
        keys = jnp.concatenate([keys, extra_keys[0]])
        key_labels = jnp.concatenate([labels, extra_keys[1]])
        key_mask = jnp.concatenate([mask, jnp.ones(len(extra_keys[0]), bool)])
    return losses.supervised_contrastive(
        features[:n],
        labels,
        mask,
        temperature,
        denominator,
        jax.lax.stop_gradient(keys),
        key_labels,
        key_mask,
        own_view_twice=True,
    )
