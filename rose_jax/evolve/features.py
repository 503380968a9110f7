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

from rose_jax.config import LARGEST_SEED
from rose_jax.errors import UserError
from rose_jax.evolution.blocked import block_size
from rose_jax.evolution.core import Evolver, padded_calls, predict, ridge_for
from rose_jax.evolution.rose import rose
from rose_jax.evolution.threads import wait_with_one_blas_thread
from rose_jax.evolve import metrics
from rose_jax.evolve.inputs import finite, float32, matrix, not_negative, same_images, square
from rose_jax.runtime.memory import must_fit
from rose_jax.testtime.evolution import Evolving, adaptation_of
from rose_jax.types import Adaptation, ClassMemory, Start, StreamBatch

_log = logging.getLogger(__name__)
_IMAGES_PER_CALL = 2048  # longer streams are cut into calls of one size, which share one executable

State = Evolving  # a pytree of arrays; `Evolution` has functions that read it


class EvolvedFeatures(NamedTuple):
    """What `evolve_features` returns."""

    predictions: np.ndarray  # int32 [n], old classes, then new ones; -1 for a row with NaN or Inf
    prototypes: np.ndarray  # float32 [C, d], the old ones moved by the map at the end of the stream
    counts: dict[str, int]  # images, bad_rows, broken_steps, ill_posed_steps (see `Counts`)
    notes: tuple[str, ...]  # for a log, e.g. a raised ridge, or a queue longer than the stream
    covariance: np.ndarray | None = None  # [d, d], metric="evolved": `old_covariance` of the next task's call


def evolve_features(
    z_old: Any,
    z_new: Any,
    old_prototypes: Any,
    new_prototypes: Any,
    projector: Any = None,
    *,
    old_covariance: Any = None,
    new_covariance: Any = None,
    **options: Any,
) -> EvolvedFeatures:
    """Classify a stream of images while their features move the old prototypes (Alg. 2).

    z_old [n, d], z_new [n, d]: features of the same images under the encoder before and after the last task.
    old_prototypes [k, d]: means of the old classes under the old encoder, unmoved; new_prototypes [m, d]:
        means of the new classes under the new encoder. Row vectors: z_new ≈ z_old @ W.
    projector [d, d]: the drift map trained with the new encoder, where W starts; None is the identity.
    options: the fields of `Evolution`. With evolve_every = k only every k-th row of z_old is read.
        metric="queue" compares in the queue's own metric instead of by the paper's cosine and asks for nothing more:
        recommended (docs/evolved_metric.md).
    old_covariance, new_covariance [d, d]: for metric="evolved", the mean within-class covariance of the old classes
        under the old encoder and of the new ones under the new encoder (`within_class_covariance`).

    Any real arrays do: NumPy, jax, lists, and torch tensors on the CPU without a gradient (x.detach().cpu()).

    Several tasks are chained by what the calls return. After task t the prototypes of all classes so far are
    `out.prototypes`: "unmoved" for task t + 1 means as this call left them, not as they were first measured.

        out = evolve_features(z1, z2, means_of_task_1, means_of_task_2)
        out = evolve_features(z2, z3, out.prototypes, means_of_task_3)      # and old_covariance=out.covariance
    """
    evolution = Evolution(**options)
    dim = matrix("old_prototypes", old_prototypes, "[old classes, d]").shape[1]
    z_old, z_new = matrix("z_old", z_old, "[n, d]", dim), matrix("z_new", z_new, "[n, d]", dim)
    same_images(z_old, z_new)
    state = evolution.init(
        old_prototypes, new_prototypes, projector, old_covariance=old_covariance, new_covariance=new_covariance
    )
    images = z_new.shape[0]
    group = evolution.granularity
    block = block_size() if evolution.block is None else evolution.block
    unit = group * -(-block // group)  # whole groups, whole blocks
    size = min(-(-images // unit), -(-_IMAGES_PER_CALL // unit)) * unit
    predictions = np.empty(images, np.int32)
    both = (
        padded_calls(z, size) for z in (z_old, z_new)
    )  # call by call: a stream may be a file mapped into memory
    for (start, old, valid), (_, new, _) in zip(*both, strict=True):
        state, labels = evolution.step(state, old, new, valid)
        predictions[start : start + size] = np.asarray(labels)[valid]
    covariance = evolution.covariance(state)
    return EvolvedFeatures(
        predictions,
        np.asarray(evolution.prototypes(state)),
        evolution.counts(state),
        evolution.notes(dim) + _note_made_up_pairs(evolution, images),
        None if covariance is None else np.asarray(covariance),
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
    block: int | None = None  # images per factorisation, a matter of speed alone; None chooses by the machine
    metric: str | None = None  # None: the paper's cosine; "queue": the queue's own; "evolved": by covariances
    metric_ridge: float | None = None  # ρ of 'evolved', κ of 'queue' (ρ = κ / classes); None chooses

    def __post_init__(self) -> None:
        for name in ("capacity", "seed", "granularity", "evolve_every", "block"):
            value = getattr(self, name)
            if name == "block" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise UserError(f"{name} must be a whole number, not {value!r}.")
            if value > LARGEST_SEED:  # of 32 bits, as positions in a stream and seeds are
                raise UserError(f"{name} must be at most {LARGEST_SEED}, not {value}.")
        for name, least in (("evolve_every", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        not_negative("alpha", self.alpha)
        if self.ridge is not None:
            not_negative("ridge", self.ridge)
        self._evolver()  # checks the rest
        metrics.check(self.metric, self.metric_ridge)

    def init(
        self,
        old_prototypes: Any,
        new_prototypes: Any,
        projector: Any = None,
        *,
        old_covariance: Any = None,
        new_covariance: Any = None,
    ) -> State:
        """The state before the first image; shapes as in `evolve_features`."""
        old = float32(matrix("old_prototypes", old_prototypes, "[old classes, d]"))
        if 0 in old.shape:
            raise UserError(
                f"old_prototypes is empty: shape {old.shape}, expected [old classes, d] with at least one class. "
                "Without old classes no prototype can move."
            )
        dim = old.shape[1]
        new = float32(matrix("new_prototypes", new_prototypes, "[new classes, d]", dim))
        start = np.eye(dim, dtype=np.float32) if projector is None else square("projector", projector, dim)
        for name, array in (("old_prototypes", old), ("new_prototypes", new)):
            finite(name, array)
        self._warn_if_noise_dominates(old)
        for note in self.notes(dim):
            _log.warning(note)
        params = metrics.params(
            self.metric, self.metric_ridge, old_covariance, new_covariance, dim, (len(old), len(new))
        )
        origin = np.r_[np.zeros(len(old), np.int32), np.ones(len(new), np.int32)]  # task 0 is old, task 1 is new
        table = jnp.concatenate([jnp.asarray(old), jnp.asarray(new)])
        with must_fit(f"A queue of {self.capacity} pairs of {dim} numbers", "capacity", ""):
            return wait_with_one_blas_thread(_init, self, table, origin, start, params)

    def step(self, state: State, z_old: Any, z_new: Any, valid: Any = None) -> tuple[State, Array]:
        """Update W with n images and label them: state, int32 [n] (-1 for a row with NaN or Inf).

        `valid` bool [n] is False for padding; a loop that pads its last call compiles only once.
        """
        dim = state.memory.mean.shape[1]
        z_old, z_new = matrix("z_old", z_old, "[n, d]", dim), matrix("z_new", z_new, "[n, d]", dim)
        same_images(z_old, z_new)
        valid = np.ones(z_new.shape[0], bool) if valid is None else valid
        valid = valid if isinstance(valid, Array) else np.asarray(valid)
        if valid.shape != (z_new.shape[0],) or valid.dtype != bool:
            raise UserError(
                f"valid has shape {valid.shape} and type {valid.dtype}, expected bool [n] = {(z_new.shape[0],)}."
            )
        return wait_with_one_blas_thread(_step, self, state, float32(z_old), float32(z_new), valid)

    def prototypes(self, state: State) -> Array:
        """All prototypes now, [old + new classes, d]: the old ones moved, the new ones as they were given."""
        return self._evolver().prototypes(state.evolver)

    def drift_map(self, state: State) -> Array:
        """The current W [d, d]."""
        return self._evolver().map(state.evolver)

    def counts(self, state: State) -> dict[str, int]:
        """images, bad_rows, broken_steps and ill_posed_steps so far."""
        return self._adaptation().counts(state)

    def covariance(self, state: State) -> Array | None:
        """metric="evolved": the mean within-class covariance [d, d] of all classes under the new encoder."""
        if self.metric != "evolved":
            return None
        return wait_with_one_blas_thread(_finish, self, state)["covariance"]

    def notes(self, dim: int) -> tuple[str, ...]:
        """What a log or a table of results should say about these options at dimension d."""
        note = ridge_for(self.capacity, dim, self.ridge)[1]
        return () if note is None else (note,)

    def _evolver(self) -> Evolver:
        return rose(self.capacity, self.alpha, self.granularity, self.solver, self.ridge, self.block)

    def _adaptation(self) -> Adaptation:
        return adaptation_of(self._evolver(), self.granularity)

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


def _note_made_up_pairs(evolution: Evolution, images: int) -> tuple[str, ...]:
    """A stream shorter than the queue leaves pairs in it that say only what the starting map knew."""
    brought = -(-images // evolution.evolve_every)
    if brought >= evolution.capacity:
        return ()
    note = (
        f"of {evolution.capacity} pairs in the queue {evolution.capacity - brought} are still made up after {images} "
        "images: a smaller capacity is rid of them sooner"
    )
    _log.warning(note)
    return (note,)


@partial(jax.jit, static_argnums=0)
def _init(options: Evolution, table: Array, origin: Array, projector: Array, params: dict[str, Any]) -> State:
    start = Start(ClassMemory(table, origin), jnp.int32(1), projector, params, jax.random.key(options.seed))
    return options._adaptation().init(start, metrics.classifier(options.metric, options.metric_ridge))


@partial(jax.jit, static_argnums=0)
def _step(options: Evolution, state: State, z_old: Array, z_new: Array, valid: Array) -> tuple[State, Array]:
    position = state.evolver.counts.images + jnp.cumsum(valid, dtype=jnp.int32) - 1
    batch = StreamBatch(jnp.asarray(valid), position % options.evolve_every == 0, z_old, z_new)
    classifier = metrics.classifier(options.metric, options.metric_ridge)
    state, scores = options._adaptation().step(state, batch, classifier)
    return state, predict(scores)


@partial(jax.jit, static_argnums=0)
def _finish(options: Evolution, state: State) -> dict[str, Any]:
    return options._adaptation().finish(state, metrics.classifier(options.metric, options.metric_ridge)).params
