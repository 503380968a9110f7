"""What choosing a convolution by its shape is worth on a CPU (rose_jax/models/conv.py, runtime/programs.py).

Gradient steps of a ResNet-18, forward pass included, in turns: milliseconds per image each way, and their ratio. "XLA" is
left to itself, "by shape" is what a run does. A row for each size of the images, which the first stage's maps have too.
PyTorch's time stands beside them where it is installed.
"""

import argparse
from collections.abc import Callable
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.models import conv, resnet
from rose_jax.runtime.programs import for_convolutions

from . import torch_resnet
from .shared import Report, by_columns, in_turns


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32], help="of the images, a side (16 32)")
    parser.add_argument("--width", type=int, default=16, help="of the network (16)")
    parser.add_argument("--batch", type=int, default=128, help="images of a step (128)")


def run(options: argparse.Namespace, report: Report) -> None:
    rows = {}
    for size in options.sizes:
        shape = (options.batch, size, size, 3)
        steps = {way: make(options.width, shape) for way, make in WAYS.items()}
        times = in_turns(steps, options.rounds, per=options.batch)
        rows[f"{size} x {size}"] = by_columns(times, "by shape") | {
            f"{way}, ms per step": 1e3 * options.batch * float(np.median(seconds))
            for way, seconds in times.items()
        }
    report.table(f"ResNet-18, width {options.width}, batches of {options.batch}", rows)


def gradient_step(
    convolution: Callable | None, options: dict[str, str | bool] | None, width: int, shape: tuple[int, ...]
) -> Callable[[], object]:
    """A compiled () -> gradient of an arbitrary loss.

    convolution: what flax's Conv calls, None for its own. options: of the compiler.
    """
    images = jax.random.normal(jax.random.key(0), shape)
    with mock.patch.object(resnet, "convolution", return_value=convolution):
        encoder = resnet.resnet18(width)
        variables = encoder.init(jax.random.key(1), images[0])

        def loss(params):
            out, _ = encoder.apply(variables | {"params": params}, images, norm="batch")
            return jnp.square(out["feature"]).mean()

        step = jax.jit(jax.grad(loss)).lower(variables["params"]).compile(compiler_options=options)
    return partial(step, variables["params"])


# The table's columns: (width of the network, shape of the images) -> () -> gradient. "by shape" is what ratios refer to.
WAYS: dict[str, Callable[[int, tuple[int, ...]], Callable[[], object]]] = {
    "XLA": partial(gradient_step, None, None),
    "by shape": lambda *shape: gradient_step(conv.by_shape, for_convolutions(), *shape),
}
if torch_resnet.available():
    WAYS["PyTorch"] = torch_resnet.gradient_step
