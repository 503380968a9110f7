"""What PASS, IL2A and FCS rehearse: prototypes of old classes, drawn anew for each step."""

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.data.augment import train_transform
from rose_jax.train.step import FINISH, task_key
from rose_jax.types import Array, Parts, PyTree, StageView, Task


def noisy_prototypes(
    key: jax.Array, mean: Array, radius: jax.Array, n_old: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
    """p_c + r N(0, 1) [size, d] for random old classes c [size]; mean: p [C, d], radius: r []."""
    class_key, noise_key = jax.random.split(key)
    chosen = jax.random.randint(class_key, (size,), 0, n_old)
    noise = jax.random.normal(noise_key, (size, mean.shape[1]))
    return jnp.asarray(mean)[chosen] + radius * noise, chosen


def draw_classes(
    key: jax.Array, n_old: jax.Array, size: int, num_classes: int, distinct: bool
) -> tuple[jax.Array, jax.Array]:
    """Old classes [size] and which of them count [size]: distinct ones may be fewer than `size`."""
    if not distinct:
        return jax.random.randint(key, (size,), 0, n_old), jnp.ones(size, bool)
    draws = jnp.where(jnp.arange(num_classes) < n_old, jax.random.uniform(key, (num_classes,)), 2.0)
    slot = jnp.arange(size)
    return jnp.argsort(draws)[jnp.minimum(slot, num_classes - 1)], slot < n_old


def rehearsed_features(
    parts: Parts, view: StageView, variables: PyTree, task: Task, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, d] of D_t that prototypes are made of, and labels [n]: each image once.

    source: "augmented" as in training (PASS's and IL2A's code), or "plain".
    """
    if source == "plain":
        return view.encode_train(variables)
    key = task_key(parts.config.seed, task.number, FINISH)
    found = [
        (np.asarray(view.encode(variables, images))[np.asarray(mask)], np.asarray(labels)[np.asarray(mask)])
        for images, labels, mask in view.train_batches(key, 1, parts.transform)
    ]
    features, labels = zip(*found, strict=True)
    return np.concatenate(features), np.concatenate(labels)


def own_transform(parts: Parts, augment: str, pad: int) -> Parts:
    """The parts with a method's own augmentation; '' is the setting's."""
    if not augment:
        return parts
    return parts._replace(transform=train_transform(augment, normalise=parts.normalise, pad=pad))
