"""ADC (Goswami et al., CVPR 2024): current images, pushed until the old encoder takes them for an old class.

The drift of such adversarial images under both encoders is the drift of the class. Gradient steps are calls of
a jitted function, not a loop inside one: on the CPU a convolution's gradient is ruinous in a loop body.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.config import ADCOptions
from rose_jax.statistics.drift import old_classes, replace_means, squared_distances
from rose_jax.types import Array, ClassMemory, Compensation, EncoderApply, Parts, PyTree, StageView


def make(parts: Parts) -> Compensation:
    options = parts.config.adc
    search = make_search(parts.encoder.apply, options.step_norm)

    def move(memory: ClassMemory, view: StageView, key: jax.Array) -> tuple[ClassMemory, None]:
        old = view.snapshots[view.stage - 1].variables
        new = view.snapshots[view.stage].variables
        images, features = _augmented_images(view, key, old)
        classes = old_classes(memory, view.stage)
        moved, failed = compensate(
            search,
            old,
            new,
            images,
            features,
            np.asarray(memory.mean)[classes],
            options,
            view.pause,
        )
        # Whole numbers add up over the stages (results.py).
        view.notes.update(failed_searches=failed, searches=len(classes))
        return replace_means(memory, classes, moved), None  # a translation of each class

    return Compensation(move)


def compensate(
    search: "Search",
    old: PyTree,
    new: PyTree,
    images: np.ndarray,
    features: np.ndarray,
    prototypes: np.ndarray,
    options: ADCOptions,
    pause: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, int]:
    """Prototypes [k, d] after the drift of each one's adversarial images, and how many searches found none.

    old, new: variables of f_{t-1} and f_t; images: [n, h, w, 3], normalised; features:
    [n, d], theirs under the old encoder.
    """
    step, encode = search
    bounds = jnp.float32(images.min()), jnp.float32(images.max())
    moved = np.array(prototypes, np.float32)
    failed = 0
    for k, prototype in enumerate(np.asarray(prototypes, np.float32)):
        pause()
        nearest = nearest_images(features, prototype, options.samples)
        candidates = jnp.asarray(images[nearest])
        found = candidates
        for _ in range(options.steps):
            found = step(old, found, prototype, jnp.float32(options.alpha), *bounds)
        rivals = moved if options.rivals == "as_moved" else np.asarray(prototypes, np.float32)
        before = np.asarray(encode(old, found))
        success = squared_distances(before, rivals).argmin(1) == k
        if not success.any():
            failed += 1
            if options.when_none_succeeds == "stay":
                continue
            success = np.ones_like(success)
            if options.when_none_succeeds == "unperturbed":
                found, before = candidates, np.asarray(encode(old, candidates))
        drift = np.asarray(encode(new, found)) - before
        moved[k] += drift[success].mean(0, dtype=np.float64)
    return moved, failed


def nearest_images(features: np.ndarray, prototype: np.ndarray, samples: int) -> np.ndarray:
    """Indices of the (at most) `samples` images whose old features are nearest to the prototype, nearest first."""
    distances = squared_distances(prototype[None, :], features)[0]
    return np.argsort(distances, kind="stable")[:samples]


class Search(NamedTuple):
    """Two jitted functions of an encoder."""

    # (variables, x, p, alpha, low, high) -> clip(x - alpha g / |g|), g the gradient of mean (f(x) - p)^2
    step: Callable[..., jax.Array]
    encode: Callable[[PyTree, Array], jax.Array]


def make_search(apply: EncoderApply, step_norm: str) -> Search:
    """step_norm "batch": |g| over all images together, so that alpha is spent on those with the largest gradient;
    "image": over each one alone. An image without a gradient stays where it is.
    """
    axes = (0, 1, 2, 3) if step_norm == "batch" else (1, 2, 3)

    def error(images: jax.Array, variables: PyTree, prototype: Array) -> jax.Array:
        feature = apply(variables, images)[0]["feature"]
        return jnp.mean(jnp.square(feature - prototype[None, :]))

    @jax.jit
    def step(
        variables: PyTree, images: Array, prototype: Array, alpha: Array, low: Array, high: Array
    ) -> jax.Array:
        gradient = jax.grad(error)(images, variables, prototype)
        largest = jnp.max(jnp.abs(gradient), axes, keepdims=True)  # squares of tiny gradients would underflow
        scaled = gradient / jnp.where(largest > 0, largest, 1.0)
        norm = jnp.sqrt(jnp.sum(jnp.square(scaled), axes, keepdims=True))
        return jnp.clip(images - alpha * scaled / jnp.where(norm > 0, norm, 1.0), low, high)

    return Search(step, jax.jit(lambda variables, images: apply(variables, images)[0]["feature"]))


def _augmented_images(view: StageView, key: jax.Array, old: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """All images of D_t, augmented once, and their features under f_{t-1}. On the host: they may be many."""
    images, features = [], []
    for batch, _, mask in view.train_batches(key, 1):
        rows = np.asarray(mask)
        images.append(np.asarray(batch)[rows])
        features.append(np.asarray(view.encode(old, batch))[rows])
    return np.concatenate(images), np.concatenate(features)
