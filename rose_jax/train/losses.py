"""The terms of the training objectives. Each is a mean over the rows of a mask, so that padding does not count."""

import jax
import jax.numpy as jnp

from rose_jax.errors import unknown
from rose_jax.models.heads import normalize

_NEG = -1e30  # stands for -inf where a gradient passes


def cross_entropy(
    logits: jax.Array, labels: jax.Array, mask: jax.Array, first: jax.Array | int, count: jax.Array | int
) -> jax.Array:
    """Eq. 1: mean CE of logits [n, C] over the classes first .. first + count - 1."""
    return cross_entropy_among(logits, labels, mask, _in_range(logits, first, count)[0])


def cross_entropy_among(logits: jax.Array, labels: jax.Array, mask: jax.Array, among: jax.Array) -> jax.Array:
    """Mean CE of logits [n, C] over the outputs where among [C] is True."""
    return masked_mean(row_entropies(logits, labels, among), mask)


def row_entropies(logits: jax.Array, labels: jax.Array, among: jax.Array) -> jax.Array:
    """CE_i [n] of logits [n, C] over the outputs where among [C] is True."""
    log_p = jax.nn.log_softmax(jnp.where(among[None, :], logits, _NEG), -1)
    return -jnp.take_along_axis(log_p, labels[:, None], 1)[:, 0]


def distillation(
    logits: jax.Array, old_logits: jax.Array, mask: jax.Array, n_old: jax.Array, temperature: float
) -> jax.Array:
    """Eq. 4: -(1/n) sum_b sum_i y_old^i log y^i over the old classes, softened; no T^2 factor, as LDC."""
    old = _in_range(logits, 0, n_old)
    target = jax.nn.softmax(jnp.where(old, old_logits / temperature, _NEG), -1)
    log_p = jax.nn.log_softmax(jnp.where(old, logits / temperature, _NEG), -1)
    return -masked_mean(jnp.sum(jnp.where(old, target * log_p, 0.0), -1), mask)


def supervised_contrastive(
    anchors: jax.Array,
    labels: jax.Array,
    mask: jax.Array,
    temperature: float,
    denominator: str,
    keys: jax.Array | None = None,
    key_labels: jax.Array | None = None,
    key_mask: jax.Array | None = None,
    own_view_twice: bool = False,
) -> jax.Array:
    """Eq. 5 on L2-normalised features: mean over anchors of the mean over their positives.

    P(x_i): the other rows of x_i's class, N(x_i): rows of other classes. What stands below the fraction:
    "negatives_and_self": this positive and all negatives; "negatives": as printed (unbounded below);
    "all": every other row (Khosla et al.). Anchors without positives do not count. Without `keys` the rows
    are compared among themselves, an anchor never with itself; with `keys` (a second view) with all of them.
    `own_view_twice`: key i is row i's second view and counts double among its positives, as FCS has it.
    """
    z = normalize(anchors)
    other: jax.Array
    if keys is None or key_labels is None:
        other, other_labels, other_mask = z, labels, mask
        comparable = ~jnp.eye(len(z), dtype=bool)
    else:
        other, other_labels = normalize(keys), key_labels
        other_mask = jnp.ones(len(keys), bool) if key_mask is None else key_mask
        comparable = jnp.ones((len(z), len(keys)), bool)
    similarity = z @ other.T / temperature  # [n, m]
    comparable &= other_mask[None, :].astype(bool)
    same = labels[:, None] == other_labels[None, :]
    positive, negative = comparable & same, comparable & ~same
    # log sum exp over the negatives; an anchor without any gets _NEG, which vanishes in logaddexp
    log_negatives = jax.nn.logsumexp(jnp.where(negative, similarity, _NEG), -1)[:, None]
    if denominator == "negatives_and_self":
        log_denominator = jnp.logaddexp(similarity, log_negatives)
    elif denominator == "negatives":
        log_denominator = jnp.broadcast_to(log_negatives, similarity.shape)
        positive &= negative.any(-1)[:, None]
    elif denominator == "all":
        everything = jax.nn.logsumexp(jnp.where(comparable, similarity, _NEG), -1)[:, None]
        log_denominator = jnp.broadcast_to(everything, similarity.shape)
    else:
        raise unknown("supcon_denominator", denominator, ("negatives_and_self", "negatives", "all"))
    weight = positive.astype(similarity.dtype)
    if own_view_twice:
        weight *= 1 + jnp.eye(len(z), len(other), dtype=similarity.dtype)
    terms = weight * jnp.where(positive, log_denominator - similarity, 0.0)
    count = weight.sum(-1)
    per_anchor = terms.sum(-1) / jnp.maximum(count, 1)
    return masked_mean(per_anchor, mask.astype(bool) & (count > 0))


def nt_xent(z: jax.Array, mask: jax.Array, temperature: float) -> jax.Array:
    """SimCLR's loss on z [2n, k], where rows 2i and 2i + 1 are two views of image i: mean over all views of

    -log exp(cos(z_i, z_j) / tau) / sum_{k != i} exp(cos(z_i, z_k) / tau), j being the other view. mask: [2n].
    """
    unit = normalize(z)
    index = jnp.arange(len(z))
    others = (index[:, None] != index[None, :]) & mask.astype(bool)[None, :]
    similarity = unit @ unit.T / temperature
    log_sum = jax.nn.logsumexp(jnp.where(others, similarity, _NEG), -1)
    partner = jnp.take_along_axis(similarity, (index ^ 1)[:, None], 1)[:, 0]
    return masked_mean(log_sum - partner, mask)


def entropies(logits: jax.Array, among: jax.Array) -> jax.Array:
    """H_i = -sum_c p_c log p_c [n] of the softmax of logits [n, C] over the outputs where among [C] is True."""
    return soft_entropies(logits, logits, among)


def soft_entropies(target: jax.Array, logits: jax.Array, among: jax.Array) -> jax.Array:
    """-sum_c softmax(target)_c log softmax(logits)_c [n], both over the outputs where among [C] is True."""
    weight = jax.nn.softmax(jnp.where(among[None, :], target, _NEG), -1)
    log_p = jax.nn.log_softmax(jnp.where(among[None, :], logits, _NEG), -1)
    return -jnp.sum(jnp.where(among[None, :], weight * log_p, 0.0), -1)


def projection(z_old: jax.Array, z_new: jax.Array, projector: jax.Array, mask: jax.Array, kind: str) -> jax.Array:
    """Eq. 7: the projector's own loss; no gradient reaches either encoder.

    "squared": mean square over rows and dimensions, whose minimiser is Eq. 12; "norm": as printed.
    """
    error = jax.lax.stop_gradient(z_old) @ projector - jax.lax.stop_gradient(z_new)
    squared = jnp.square(error).sum(-1)
    if kind == "squared":
        return masked_mean(squared / z_old.shape[-1], mask)
    if kind == "norm":
        return masked_mean(safe_sqrt(squared), mask)
    raise unknown("projector loss", kind, ("squared", "norm"))


def batch_distance(features: jax.Array, other: jax.Array, mask: jax.Array) -> jax.Array:
    """||F - F'||_F: one norm over the whole batch [n, d], so that it grows with the square root of its size.

    PASS, IL2A and FCS distil by it.
    """
    return safe_sqrt(jnp.sum(jnp.where(mask[:, None], jnp.square(features - other), 0.0)))


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of values [n] over the rows in mask; 0 where there are none."""
    weight = mask.astype(values.dtype)
    return jnp.sum(values * weight) / jnp.maximum(weight.sum(), 1.0)


def safe_sqrt(x: jax.Array) -> jax.Array:
    """sqrt whose gradient at 0 is 0, as torch's norm has it; jnp's is NaN."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def _in_range(logits: jax.Array, first: jax.Array | int, count: jax.Array | int) -> jax.Array:
    index = jnp.arange(logits.shape[-1])[None, :]
    return (index >= first) & (index < first + count)
