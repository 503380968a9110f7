"""LDC (Gomez-Villa et al., ECCV 2024): after the task, a linear map from old to new features is trained."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from rose_jax.compensation.projector import project_old
from rose_jax.train import losses
from rose_jax.train.projector import init_projector
from rose_jax.types import ClassMemory, Compensation, Parts, PyTree, StageView


def make(parts: Parts) -> Compensation:
    options = parts.config.ldc
    update = make_update(options.lr)

    def move(memory: ClassMemory, view: StageView, key: jax.Array) -> tuple[ClassMemory, jax.Array]:
        init_key, data_key = jax.random.split(key)
        old = view.snapshots[view.stage - 1].variables
        new = view.snapshots[view.stage].variables
        projector = init_projector(options.init, init_key, view.encoder.feature_dim)
        opt_state = optax.adam(options.lr).init(projector)
        # Only forward passes of two frozen encoders here; the gradient is that of one matrix.
        for images, _, mask in view.train_batches(data_key, options.epochs):
            pair = view.encode(old, images), view.encode(new, images)
            projector, opt_state = update(projector, opt_state, *pair, mask)
        return project_old(memory, projector, view.stage), projector

    return Compensation(move)


def make_update(lr: float) -> Callable[..., tuple[jax.Array, PyTree]]:
    """(W, opt_state, z_old, z_new, mask) -> W, opt_state: one step of Adam on mean |z_old W - z_new|^2 / d."""
    transform = optax.adam(lr)

    @jax.jit
    def update(
        projector: jax.Array, opt_state: PyTree, z_old: jax.Array, z_new: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        grad = jax.grad(lambda w: losses.projection(z_old, z_new, w, mask, "squared"))(projector)
        updates, opt_state = transform.update(grad, opt_state, projector)
        return jnp.asarray(optax.apply_updates(projector, updates)), opt_state

    return update
