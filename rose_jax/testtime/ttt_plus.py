"""TTT++ (Liu et al., NeurIPS 2021), in one pass: a step on SimCLR's loss and on the distance of moments to the source's.

L = L_ssl + sum over features and head outputs of (s / c) |Sigma_s - Sigma_t|_F^2 / (4 d^2) + (s / 2 m) mean (mu_s - mu_t)^2.
c and m are the same distances between parts of D_t, so that s is in units of the source's noise. Test moments are of a
queue and of the batch, which alone has a gradient. The encoder learns under the statistics of the batch and predicts
under its running ones, which the batch's pass moves, and by `simclr.moves_statistics` the views' too.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rose_jax.data.augment.views import simclr_pair
from rose_jax.models.heads import mlp
from rose_jax.statistics.mixture import Moments, mixed, moments_of, no_moments, transported
from rose_jax.statistics.moments import least_squares
from rose_jax.testtime.adapting import Changing, Frame, Method, Prediction, Shown, Work, adaptation
from rose_jax.testtime.batch_norm import read_batch
from rose_jax.testtime.reading import Reader
from rose_jax.train import losses
from rose_jax.train.auxiliary import SIMCLR
from rose_jax.train.optimizers import network
from rose_jax.types import Adaptation, Array, Key, Model, Parts, PyTree, StageView

BASE_TEMPERATURE = 0.07  # the code multiplies its contrast by temperature / 0.07
RIDGE = 0.01  # of the map between head outputs, times the mean square of their directions


class Source(NamedTuple):
    """Of features or of head outputs, measured on D_t."""

    moments: Moments
    map: Array  # [d, d], from the network before to this one; zeros in the first task
    covariance_noise: Array  # c []
    mean_noise: Array  # m []


class Queue(NamedTuple):
    feature: Array  # [q, d]
    head: Array  # [q, k]
    filled: Array  # bool [q]


def make(parts: Parts) -> Adaptation:
    options, encoder, simclr = parts.config.ttt_plus, parts.encoder, parts.config.simclr
    optimizer = network("sgd", options.lr, 0.0, options.momentum)
    dims = {"feature": encoder.feature_dim, "head": simclr.out}
    weights = {"feature": options.feature_weight, "head": options.head_weight}
    length = max(options.queue_size - parts.config.testtime.batch_size, 0)

    def lasting(model: Model) -> PyTree:
        params, stats = model.variables["params"], model.variables["batch_stats"]
        return {"params": params, "stats": stats, "moments": optimizer.init(params)}

    def passing(frame: Frame, kept: PyTree) -> PyTree:
        """The moments to align to, of all tasks so far, and an empty queue."""
        source = {}
        for name, found in frame.fitted.items():
            earlier = transported(kept[name], found.map)
            source[name] = mixed(earlier, found.moments) if options.moments == "all_tasks" else found.moments
        zeros = {name: jnp.zeros((length, dim)) for name, dim in dims.items()}
        return {"source": source, "queue": Queue(**zeros, filled=jnp.zeros(length, bool))}

    def update(
        own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        head, queue = frame.model.extra[SIMCLR]["head"], own.passing["queue"]
        views, views_valid = parts.normalise(simclr_pair(shown.key, shown.raw)), jnp.repeat(shown.valid, 2)
        used = queue.filled & (options.partial_queue | queue.filled.all())

        def loss(params: PyTree) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": own.lasting["stats"]}
            out, seen_in_views = encoder.apply(variables, views, norm="batch", mask=views_valid)
            contrast = losses.nt_xent(mlp(head, out["feature"]), views_valid, simclr.temperature)
            total = simclr.temperature / BASE_TEMPERATURE * contrast
            if simclr.moves_statistics:
                variables = {"params": params, "batch_stats": seen_in_views}
            out, stats = encoder.apply(variables, shown.images, norm="batch", mask=shown.valid)
            seen = {"feature": out["feature"], "head": mlp(head, out["feature"])}
            weight = jnp.concatenate([shown.valid, used]).astype(out["feature"].dtype)
            for name, rows in seen.items():
                now = moments_of(jnp.concatenate([rows, getattr(queue, name)]), weight)
                total += weights[name] * distance(now, own.passing["source"][name], frame.fitted[name])
            return total, (stats, seen)

        grads, (stats, seen) = jax.grad(loss, has_aux=True)(own.lasting["params"])
        updates, moments = optimizer.update(grads, own.lasting["moments"], own.lasting["params"])
        params = optax.apply_updates(own.lasting["params"], updates)
        after = {"params": params, "stats": stats, "moments": moments}
        return Changing(after, own.passing | {"queue": pushed(queue, seen, shown.valid)}), None, Work(3, 3, 1)

    def predict(own: Changing, frame: Frame, shown: Shown, reader: Reader) -> Prediction:
        variables = {"params": own.lasting["params"], "batch_stats": own.lasting["stats"]}
        return read_batch(encoder, variables, shown, reader, norm="running")

    def fit(view: StageView, reader: Reader, key: Key) -> PyTree:
        rows = [outputs(view, k) for k in range(max(view.stage - 1, 0), view.stage + 1)]
        # Data sets that are stored class by class would give each part classes of its own.
        mixed = np.asarray(jax.random.permutation(key, len(rows[-1]["feature"])))
        found = {}
        for name, dim in dims.items():
            linear_map = np.zeros((dim, dim), np.float32)
            if view.stage and name == "feature":
                linear_map = np.asarray(view.snapshots[view.stage].projector)
            elif view.stage:
                linear_map = map_between(rows[0][name], rows[1][name])
            found[name] = measured(rows[-1][name][mixed], linear_map, options.queue_size)
        return found

    def outputs(view: StageView, k: int) -> dict[str, np.ndarray]:
        feature = view.train_features(k)[0]
        return {"feature": feature, "head": np.asarray(mlp(view.snapshots[k].extra[SIMCLR]["head"], feature))}

    return adaptation(
        parts,
        Method(
            "after",
            lasting,
            update,
            predict,
            passing,
            fit,
            keep=lambda own: own.passing["source"],
            blank=lambda: {name: no_moments(dim) for name, dim in dims.items()},
            needs=frozenset({SIMCLR}),
        ),
    )


def map_between(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """V [k, k] with old V ~ new for rows [n, k] of D_t: least squares with a ridge that is centred on the identity.

    The head is carried on from task to task; where D_t says nothing of a direction, it is taken as unmoved. (A ridge centred
    on 0, or a small one, makes moments of old tasks explode in directions that D_t hardly has.)
    """
    ridge = RIDGE * float(np.square(np.asarray(old, np.float64)).sum()) / old.shape[1]
    return (np.eye(old.shape[1]) + least_squares(old, new - old, ridge)).astype(np.float32)


def measured(rows: np.ndarray, linear_map: Array, part: int) -> Source:
    """Moments of rows [n, d], and the mean distance of parts of so many rows, at least two, from the first part."""
    parts = [p for p in np.array_split(rows, max(2, len(rows) // part)) if len(p)]
    whole, first, *later = (moments_of(p, np.ones(len(p), np.float32)) for p in (rows, *parts))
    noise = np.mean([[float(x) for x in distances(first, other)] for other in later or [first]], axis=0)
    least = float(np.finfo(np.float32).tiny) ** 0.5  # of a task without any spread
    return Source(whole, linear_map, *np.maximum(noise, least).astype(np.float32))


def distances(first: Moments, second: Moments) -> tuple[jax.Array, jax.Array]:
    """|Sigma - Sigma'|_F^2 / (4 d^2) and mean (mu - mu')^2."""
    dim = len(first.mean)
    between = jnp.sum(jnp.square(first.covariance - second.covariance)) / (4 * dim**2)
    return between, jnp.mean(jnp.square(first.mean - second.mean))


def distance(now: Moments, wanted: Moments, source: Source) -> jax.Array:
    """coral / c + mmd / (2 m)."""
    covariance, mean = distances(now, wanted)
    return covariance / source.covariance_noise + 0.5 * mean / source.mean_noise


def pushed(queue: Queue, seen: dict[str, jax.Array], valid: jax.Array) -> Queue:
    """The batch's rows before the others; padding takes no place."""
    filled = jnp.concatenate([valid, queue.filled])
    first = jnp.argsort(~filled, stable=True)[: len(queue.filled)]

    def joined(name: str) -> jax.Array:
        return jnp.concatenate([seen[name], getattr(queue, name)])[first]

    return Queue(joined("feature"), joined("head"), filled[first])
