"""How a task begins for every objective: the first from scratch, later ones from the network before."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.models.heads import Head
from rose_jax.types import ClassMemory, Parts, PyTree, Snapshot, StageView


def start(
    parts: Parts,
    key: jax.Array,
    prev: Snapshot | None,
    make_head: Callable[[jax.Array], Head],
    carry: Callable[[Head, Head], Head],
) -> tuple[dict[str, Any], PyTree]:
    """{"encoder", "head"} and the running statistics.

    carry: (the previous head, a fresh one) -> the head that later tasks begin with.
    """
    encoder_key, head_key = jax.random.split(key)
    head = make_head(head_key)
    if prev is None:
        variables = parts.encoder.init(encoder_key, jnp.zeros(parts.image_shape))
    else:
        variables, head = prev.variables, carry(prev.head, head)
    return {"encoder": variables["params"], "head": head}, variables["batch_stats"]


def class_means(view: StageView, variables: PyTree, num_classes: int, task: int) -> ClassMemory:
    """Eq. 2: prototypes of the new classes, from images that are not augmented."""
    return means_of(*view.encode_train(variables), num_classes, task)


def means_of(features: np.ndarray, labels: np.ndarray, num_classes: int, task: int) -> ClassMemory:
    """Eq. 2 on features [n, d] of the new classes."""
    # On the host in float64: a scatter-add on a GPU adds in any order, and hosts must agree to the last bit.
    sums = np.zeros((num_classes, features.shape[1]))
    np.add.at(sums, labels, features)
    counts = np.bincount(labels, minlength=num_classes)
    mean = (sums / np.maximum(counts, 1)[:, None]).astype(features.dtype)
    return ClassMemory(jnp.asarray(mean), jnp.asarray(np.where(counts > 0, task, -1), jnp.int32))
