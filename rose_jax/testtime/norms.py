"""TENT and EATA change scales and biases of the norms, under the statistics of each batch, and nothing else."""

from collections.abc import Callable

import jax
import optax

from rose_jax.models.norm import norm_params, with_norm_params
from rose_jax.testtime.adapting import Changing, Frame, Predict, Prediction, Shown
from rose_jax.testtime.batch_norm import read_batch
from rose_jax.testtime.reading import Reader
from rose_jax.types import Encoder, Model, Parts, PyTree


def begin(optimizer: optax.GradientTransformation) -> Callable[[Model], PyTree]:
    def lasting(model: Model) -> PyTree:
        norms = norm_params(model.variables["params"])
        return {"norms": norms, "moments": optimizer.init(norms)}

    return lasting


def forward(
    encoder: Encoder, frame: Frame, norms: PyTree, shown: Shown, reader: Reader
) -> tuple[jax.Array, jax.Array]:
    """Features [n, d] and logits [n, C] of the batch with these norms."""
    out, _ = encoder.apply(network(frame, norms), shown.images, norm="batch", mask=shown.valid)
    return out["feature"], reader.logits(out["feature"])


def network(frame: Frame, norms: PyTree) -> PyTree:
    variables = frame.model.variables
    return variables | {"params": with_norm_params(variables["params"], norms)}


def predictor(parts: Parts) -> Predict:
    def predict(own: Changing, frame: Frame, shown: Shown, reader: Reader) -> Prediction:
        return read_batch(parts.encoder, network(frame, own.lasting["norms"]), shown, reader)

    return predict
