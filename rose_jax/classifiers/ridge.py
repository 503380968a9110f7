"""DPCR's classifier (He et al., ICML 2025): ridge regression to the classes, from moments instead of old images.

    R = sum_old Phi_c + sum_new z^T z + gamma I
    Q_c = n_c mu_c of old classes, sum z of new ones;    Delta = R^-1 Q;    score_c = z Delta_c / |Delta_c|

Phi_c is the uncentred second moment of class c: it moves as Phi_c <- W_c^T Phi_c W_c with W_c = W Pi_c, W being the
map that moves the prototypes and Pi_c the row space of Phi_c. So R and Q follow any drift map, an evolved one too.
Phi and Pi take C d^2 numbers each.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.data.order import generator
from rose_jax.evolution.core import matmul
from rose_jax.statistics import moments as mom
from rose_jax.statistics.covariance import moved
from rose_jax.statistics.drift import augmented_features, old_classes
from rose_jax.types import Array, Classifier, ClassMemory, Motion, Parts, PyTree, StageView


def make(parts: Parts) -> Classifier:
    """params: what `fit` measures, then in `follow` `weights` [C, d], `map` (W) and `moved` (classes it moves)."""
    options, seed = parts.config.dpcr, parts.config.seed

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        num_classes, dim = memory.mean.shape
        old = old_classes(memory, view.stage)
        features, labels = mom.readable(*view.train_features(view.stage))
        moments = np.array(previous["moments"]) if previous else np.zeros((num_classes, dim, dim), np.float32)
        counts = np.array(previous["counts"]) if previous else np.zeros(num_classes, np.float32)
        for c in np.unique(labels):
            own = features[labels == c]
            moments[c], counts[c] = own.T @ own, len(own)
        spans, narrow, whole = np.zeros_like(moments), np.zeros(num_classes, bool), np.zeros((dim, dim))
        for c in old:
            view.pause()
            span, rank = mom.row_space(moments[c], options.threshold)
            narrow[c] = rank < dim
            if narrow[c]:
                spans[c] = span
            else:  # Pi_c = I, as for nearly every class with DPCR's threshold of 0: one product moves all of these
                whole += moments[c]
        new = mom.class_sums(*new_features(view), num_classes)
        measured = {"whole": whole, "gram": new.gram, "sums": new.total, "counts": counts}
        params = {name: np.asarray(value, np.float32) for name, value in measured.items()}
        is_old = np.isin(np.arange(num_classes), old)
        return params | {"moments": moments, "spans": spans, "narrow": narrow, "old": is_old}

    def new_features(view: StageView) -> tuple[np.ndarray, np.ndarray]:
        """D_t under f_t, and labels: the images whose sums stand for the new classes in R and Q."""
        if options.sums == "plain":
            return view.train_features(view.stage)
        key = jax.random.key(int(generator("stream", seed, view.stage, 2).integers(2**31)))
        return augmented_features(view, key, view.snapshots[view.stage].variables)

    def follow(params: PyTree, memory: ClassMemory, drift_map: Array | None, pairs: PyTree) -> PyTree:
        gram = moved(params["whole"], drift_map) + _narrow_moments(params, drift_map) + params["gram"]
        old = jnp.asarray(params["old"])
        targets = jnp.where(old[:, None], params["counts"][:, None] * memory.mean, params["sums"])
        weights = ridge_weights(gram, targets, options.gamma)
        if drift_map is None:
            return params | {"weights": weights, "map": jnp.eye(len(gram)), "moved": jnp.zeros_like(old)}
        return params | {"weights": weights, "map": jnp.asarray(drift_map), "moved": old}

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        scores = matmul(feature, params["weights"].T)
        scores = jnp.where((memory.origin >= 0)[None, :], scores, -jnp.inf)
        return jnp.where(jnp.isfinite(feature).all(axis=1)[:, None], scores, jnp.nan)

    def keep(params: PyTree) -> PyTree:
        return {"moments": carried(params), "counts": params["counts"], "weights": params["weights"]}

    return Classifier(fit, logits, motion=Motion(follow, keep, refresh=options.refresh, confine=confine))


def confine(params: PyTree, memory: ClassMemory) -> ClassMemory:
    """mu_c <- mu_c Pi_c of old classes: what a compensation has moved by W is then moved by W_c."""
    mean = np.array(memory.mean)
    for c in np.flatnonzero(params["narrow"]):
        mean[c] = np.asarray(mean[c], np.float64) @ params["spans"][c]
    return memory._replace(mean=mean)


def ridge_weights(gram: Array, targets: Array, gamma: float) -> jax.Array:
    """Rows Delta_c / |Delta_c| [C, d] of Delta = (gram + gamma I)^-1 Q; targets: rows Q_c [C, d]; zero stays zero.

    gamma is raised to what its dtype resolves beside the trace, or rounding could make the matrix indefinite.
    """
    dim = gram.shape[0]
    ridge = jnp.maximum(gamma, jnp.finfo(gram.dtype).eps * jnp.trace(gram))
    factor = jax.scipy.linalg.cho_factor(gram + ridge * jnp.eye(dim, dtype=gram.dtype), lower=True)
    weights = jax.scipy.linalg.cho_solve(factor, targets.T).T
    lengths = jnp.linalg.norm(weights, axis=1)[:, None]
    return weights / jnp.where(lengths > 0, lengths, 1)


def _narrow_moments(params: PyTree, drift_map: Array | None) -> jax.Array:
    """sum W_c^T Phi_c W_c over old classes that do not span the space. Class by class: all at once are C d^2 numbers."""

    def add(total: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        moment, span, narrow = one
        part = lambda: moment if drift_map is None else mom.moved_within(moment, drift_map, span)  # noqa: E731
        return jax.lax.cond(narrow, lambda: total + part(), lambda: total), None

    zero = jnp.zeros_like(params["whole"])
    return jax.lax.scan(add, zero, (params["moments"], params["spans"], params["narrow"]))[0]


@jax.jit
def carried(params: PyTree) -> jax.Array:
    """Phi_c [C, d, d] after the stage's drift: old classes moved, new ones as they are."""

    def move(one: tuple[jax.Array, ...]) -> jax.Array:
        moment, span, narrow, moves = one
        within = lambda: mom.moved_within(moment, params["map"], span)  # noqa: E731
        freely = lambda: moved(moment, params["map"])  # noqa: E731
        return jax.lax.cond(moves, lambda: jax.lax.cond(narrow, within, freely), lambda: moment)

    return jax.lax.map(move, tuple(params[name] for name in ("moments", "spans", "narrow", "moved")))
