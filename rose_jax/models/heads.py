"""Heads of fixed width: every class has its row from the first task on; masks select those in use."""

import jax
import jax.numpy as jnp

from rose_jax.errors import unknown
from rose_jax.types import Array

Head = dict[str, jax.Array]  # weight [C, d], and scale [] (cosine) or bias [C] (linear)


def init_head(kind: str, key: jax.Array, num_classes: int, dim: int) -> Head:
    """Rows ~ U(-1/sqrt d, 1/sqrt d) as torch's Linear. Cosine: one learnable scale, 1 at the start.

    kind: "cosine", "linear" or "bias_free" (linear without a bias).
    """
    limit = dim**-0.5
    weight_key, bias_key = jax.random.split(key)
    weight = jax.random.uniform(weight_key, (num_classes, dim), minval=-limit, maxval=limit)
    if kind == "cosine":
        return {"weight": weight, "scale": jnp.ones(())}
    if kind == "linear":
        bias = jax.random.uniform(bias_key, (num_classes,), minval=-limit, maxval=limit)
        return {"weight": weight, "bias": bias}
    if kind == "bias_free":
        return {"weight": weight}
    raise unknown("head", kind, ("cosine", "linear", "bias_free"))


def head_logits(head: Head, feature: Array) -> jax.Array:
    """feature [n, d] -> logits [n, C]. Cosine head: scale * cos(feature, row)."""
    if "scale" in head:
        return head["scale"] * (normalize(feature) @ normalize(head["weight"]).T)
    logits = jnp.asarray(feature) @ head["weight"].T
    return logits + head["bias"][None, :] if "bias" in head else logits


def init_mlp(key: jax.Array, dim: int, hidden: int, out: int) -> dict[str, Head]:
    """Two linear layers with torch's initial values."""
    hidden_key, out_key = jax.random.split(key)
    return {
        "hidden": init_head("linear", hidden_key, hidden, dim),
        "out": init_head("linear", out_key, out, hidden),
    }


def mlp(layers: dict[str, Head], feature: Array) -> jax.Array:
    """feature [n, d] -> [n, out], with a ReLU between the two layers."""
    return head_logits(layers["out"], jax.nn.relu(head_logits(layers["hidden"], feature)))


def renew_rows(head: Head, fresh: Head, keep: Array) -> Head:
    """Rows where keep [C] is False come from `fresh`; the cosine scale is carried over.

    Used at the start of a task, because L2 weight decay has shrunk the rows of classes not seen so far.
    """
    renewed = {"weight": jnp.where(keep[:, None], head["weight"], fresh["weight"])}
    if "scale" in head:
        return renewed | {"scale": head["scale"]}
    if "bias" in head:
        return renewed | {"bias": jnp.where(keep, head["bias"], fresh["bias"])}
    return renewed


def normalize(x: Array, eps: float = 1e-12) -> jax.Array:
    """Rows to unit length; a zero row stays zero and has a zero gradient (jnp.linalg.norm's is NaN)."""
    squared = jnp.sum(jnp.square(x), -1, keepdims=True)
    return jnp.asarray(x) * jax.lax.rsqrt(jnp.maximum(squared, eps**2))
