"""RoSE for anybody's encoder: features and prototypes in, labels and moved prototypes out.

`evolve_features` takes a whole stream; `Evolution` takes it call by call, as a serving loop sees it.
"""

import dataclasses
import logging
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rose_jax.errors import UserError
from rose_jax.evolution.core import Evolver, State, padded_calls, predict, ridge_for
from rose_jax.evolution.rose import rose
from rose_jax.evolution.threads import wait_with_one_blas_thread

_log = logging.getLogger(__name__)
_IMAGES_PER_CALL = 2048  # longer streams are cut into calls of one size, which share one executable


class EvolvedFeatures(NamedTuple):
    """What `evolve_features` returns."""

    predictions: np.ndarray  # int32 [n], old classes, then new ones; -1 for a row with NaN or Inf
    prototypes: np.ndarray  # float32 [C, d], the old ones moved by the map at the end of the stream
    counts: dict[str, int]  # images, bad_rows, broken_steps, ill_posed_steps (see `Counts`)
    notes: tuple[str, ...]  # for a log, e.g. a raised ridge


def evolve_features(
    z_old: Any, z_new: Any, old_prototypes: Any, new_prototypes: Any, projector: Any = None, **options: Any
) -> EvolvedFeatures:
    """Classify a stream of images while their features move the old prototypes (Alg. 2).

    z_old [n, d], z_new [n, d]: features of the same images under the encoder before and after the last task.
    old_prototypes [k, d]: means of the old classes under the old encoder, unmoved; new_prototypes [m, d]:
        means of the new classes under the new encoder. Row vectors: z_new ≈ z_old @ W.
    projector [d, d]: the drift map trained with the new encoder, where W starts; None is the identity.
    options: the fields of `Evolution`. With evolve_every = k only every k-th row of z_old is read.
    """
    evolution = Evolution(**options)
    dim = _matrix("old_prototypes", old_prototypes, "[old classes, d]").shape[1]
    z_old, z_new = _matrix("z_old", z_old, "[n, d]", dim), _matrix("z_new", z_new, "[n, d]", dim)
    _same_images(z_old, z_new)
    state = evolution.init(old_prototypes, new_prototypes, projector)
    images = z_new.shape[0]
    group = evolution.granularity
    unit = group * -(-evolution.block // group)  # whole groups, whole blocks
    size = min(-(-images // unit), -(-_IMAGES_PER_CALL // unit)) * unit
    predictions = np.empty(images, np.int32)
    both = (
        padded_calls(z, size) for z in (z_old, z_new)
    )  # call by call: a stream may be a file mapped into memory
    for (start, old, valid), (_, new, _) in zip(*both, strict=True):
        state, labels = evolution.step(state, old, new, valid)
        predictions[start : start + size] = np.asarray(labels)[valid]
    return EvolvedFeatures(
        predictions,
        np.asarray(evolution.prototypes(state)),
        {name: int(count) for name, count in state.counts._asdict().items()},
        evolution.notes(dim),
    )


@dataclasses.dataclass(frozen=True)
class Evolution:
    """The options of an evolution, with pure functions over its state; the state is a pytree of arrays.

    evolution = Evolution(capacity=3000)
    state = evolution.init(old_prototypes, new_prototypes, projector)
    for z_old, z_new in stream:  # any number of images per call; compiled once for each number
        state, labels = evolution.step(state, z_old, z_new)
    """

    capacity: int = 3000  # S, pairs in the queue
    alpha: float = 0.2  # noise of the pseudo-features that fill the queue at first
    seed: int = 0  # of the pseudo-features
    granularity: int = 1  # images per update, counted from the start of each call; 1 is the paper
    solver: str = "blocked"  # or "direct", the slow reference
    ridge: float | None = None  # ρ of λ = ρ·tr(G₀)/d; None chooses (see `ridge_for`)
    evolve_every: int = 1  # every k-th image enters the queue, all are classified; 1 is the paper
    block: int = 64  # images per factorisation, a matter of speed alone

    def __post_init__(self) -> None:
        for name in ("capacity", "seed", "granularity", "evolve_every", "block"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise UserError(f"{name} must be a whole number, not {value!r}.")
        if self.evolve_every < 1:
            raise UserError(f"evolve_every must be at least 1, not {self.evolve_every}.")
        for name, value in (("alpha", self.alpha), ("ridge", 0.0 if self.ridge is None else self.ridge)):
            number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
            if not (number and np.isfinite(value) and value >= 0):
                raise UserError(f"{name} must be a finite number and not negative, not {value!r}.")
        self._evolver()  # checks the rest

    def init(self, old_prototypes: Any, new_prototypes: Any, projector: Any = None) -> State:
        """The state before the first image; shapes as in `evolve_features`."""
        old = _float32(_matrix("old_prototypes", old_prototypes, "[old classes, d]"))
        if 0 in old.shape:
            raise UserError(
                f"old_prototypes is empty: shape {old.shape}, expected [old classes, d] with at least one class. "
                "Without old classes no prototype can move."
            )
        dim = old.shape[1]
        new = _float32(_matrix("new_prototypes", new_prototypes, "[new classes, d]", dim))
        if projector is None:
            start = np.eye(dim, dtype=np.float32)
        else:
            start = _float32(_matrix("projector", projector, "[d, d]", dim))
            if start.shape != (dim, dim):
                raise UserError(f"projector has shape {start.shape}, expected [d, d] = {(dim, dim)}.")
        for name, array in (("old_prototypes", old), ("new_prototypes", new), ("projector", start)):
            if not isinstance(array, jax.core.Tracer) and not np.isfinite(array).all():
                raise UserError(f"{name} holds NaN or Inf; every entry of {array.shape} must be finite.")
        self._warn_if_noise_dominates(old)
        for note in self.notes(dim):
            _log.warning(note)
        moves = np.arange(len(old) + len(new)) < len(old)
        table = jnp.concatenate([jnp.asarray(old), jnp.asarray(new)])
        return _init(self, table, moves, start)

    def step(self, state: State, z_old: Any, z_new: Any, valid: Any = None) -> tuple[State, Array]:
        """Update W with n images and label them: state, int32 [n] (-1 for a row with NaN or Inf).

        `valid` bool [n] is False for padding; a loop that pads its last call compiles only once.
        """
        dim = state.prototypes.shape[1]
        z_old, z_new = _matrix("z_old", z_old, "[n, d]", dim), _matrix("z_new", z_new, "[n, d]", dim)
        _same_images(z_old, z_new)
        valid = np.ones(z_new.shape[0], bool) if valid is None else valid
        valid = valid if isinstance(valid, Array) else np.asarray(valid)
        if valid.shape != (z_new.shape[0],) or valid.dtype != bool:
            raise UserError(
                f"valid has shape {valid.shape} and type {valid.dtype}, expected bool [n] = {(z_new.shape[0],)}."
            )
        return wait_with_one_blas_thread(_step, self, state, _float32(z_old), _float32(z_new), valid)

    def prototypes(self, state: State) -> Array:
        """All prototypes now, [old + new classes, d]: the old ones moved, the new ones as they were given."""
        return self._evolver().prototypes(state)

    def drift_map(self, state: State) -> Array:
        """The current W [d, d]."""
        return self._evolver().map(state)

    def notes(self, dim: int) -> tuple[str, ...]:
        """What a log or a table of results should say about these options at dimension d."""
        note = ridge_for(self.capacity, dim, self.ridge)[1]
        return () if note is None else (note,)

    def _evolver(self) -> Evolver:
        return rose(self.capacity, self.alpha, self.granularity, self.solver, self.ridge, self.block)

    def _warn_if_noise_dominates(self, old_prototypes: Any) -> None:
        if isinstance(old_prototypes, jax.core.Tracer):
            return
        noise = self.alpha * old_prototypes.shape[1] ** 0.5
        typical = float(np.median(np.linalg.norm(old_prototypes, axis=1)))
        if noise > typical:
            warnings.warn(
                f"alpha={self.alpha:g} is too large: noise of norm {noise:.3g} (alpha x sqrt(d)) around prototypes of "
                f"median norm {typical:.3g}. Use a smaller alpha or rescale the features.",
                stacklevel=3,
            )


@partial(jax.jit, static_argnums=0)
def _init(options: Evolution, table: Array, moves: Array, projector: Array) -> State:
    seen = jnp.ones(table.shape[0], bool)
    return options._evolver().init(table, moves, seen, projector, jax.random.key(options.seed))


@partial(jax.jit, static_argnums=0)
def _step(options: Evolution, state: State, z_old: Array, z_new: Array, valid: Array) -> tuple[State, Array]:
    position = state.counts.images + jnp.cumsum(valid, dtype=jnp.int32) - 1
    enters = position % options.evolve_every == 0
    state, scores = options._evolver().step(state, z_old, z_new, valid, enters)
    return state, predict(scores)


def _matrix(name: str, array: Any, expected: str, dim: int | None = None) -> Any:
    """The array, unchanged; an error if it is not a matrix of numbers with `dim` columns."""
    if not isinstance(array, (np.ndarray, Array)):
        try:
            array = np.asarray(array)
        except (ValueError, TypeError) as error:
            raise UserError(f"{name} is not an array: {error}. Expected shape {expected}.") from error
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise UserError(f"{name} holds {array.dtype}, expected real numbers of shape {expected}.")
    if array.ndim != 2:
        raise UserError(f"{name} has shape {array.shape}, expected {expected}.")
    if dim is not None and array.shape[1] != dim:
        raise UserError(
            f"{name} has shape {array.shape}, expected {expected} with d={dim}, the dimension of old_prototypes."
        )
    return array


def _same_images(z_old: Any, z_new: Any) -> None:
    if z_old.shape != z_new.shape:
        raise UserError(
            f"z_old has shape {z_old.shape} and z_new {z_new.shape}; expected the same [n, d], row i of both "
            "from the same image."
        )


def _float32(array: Any) -> Any:
    if isinstance(array, Array):
        return array.astype(jnp.float32)
    with np.errstate(over="ignore"):  # overflow becomes Inf, and such a row is counted as bad
        return array.astype(np.float32)
