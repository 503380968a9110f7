"""A one-layer stand-in for the ResNet, in JAX and again in float64 NumPy, so that whole losses have an oracle.

feature = tanh((x kernel - mean) scale + bias), where mean is the batch's (masked) or the running one.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.models.resnet import Encoder

SHAPE, DIM, MOMENTUM = (4, 4, 3), 5, 0.9


def encoder() -> Encoder:
    def init(key, image):
        kernel = 0.2 * jax.random.normal(key, (image.size, DIM))
        params = {"layer": {"kernel": kernel, "scale": jnp.ones(DIM), "bias": jnp.zeros(DIM)}}
        return {"params": params, "batch_stats": {"mean": jnp.zeros(DIM)}}

    def apply(variables, images, *, norm="running", mask=None):
        layer, stats = variables["params"]["layer"], variables["batch_stats"]
        hidden = images.reshape(len(images), -1) @ layer["kernel"]
        mean = stats["mean"]
        if norm == "batch":
            weight = jnp.ones(len(images)) if mask is None else mask.astype(jnp.float32)
            mean = (weight[:, None] * hidden).sum(0) / weight.sum()
            stats = {"mean": MOMENTUM * stats["mean"] + (1 - MOMENTUM) * mean}
        feature = jnp.tanh((hidden - mean[None, :]) * layer["scale"][None, :] + layer["bias"][None, :])
        return {"feature": feature}, stats

    return Encoder(init, apply, DIM)


def features(variables, images, norm="running", mask=None) -> np.ndarray:
    variables = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
    layer = variables["params"]["layer"]
    hidden = np.asarray(images, np.float64).reshape(len(images), -1) @ layer["kernel"]
    mean = variables["batch_stats"]["mean"]
    if norm == "batch":
        mean = hidden[np.ones(len(images), bool) if mask is None else np.asarray(mask)].mean(0)
    return np.tanh((hidden - mean) * layer["scale"] + layer["bias"])


def variables(seed: int):
    rng = np.random.default_rng(seed)
    layer = {
        "kernel": 0.3 * rng.standard_normal((np.prod(SHAPE), DIM)),
        "scale": rng.uniform(0.5, 1.5, DIM),
        "bias": 0.1 * rng.standard_normal(DIM),
    }
    tree = {"params": {"layer": layer}, "batch_stats": {"mean": 0.1 * rng.standard_normal(DIM)}}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mean_ce(logits: np.ndarray, labels: np.ndarray) -> float:
    return float(-log_softmax(logits)[np.arange(len(labels)), labels].mean())


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
