"""What summing a convolution's weight gradient in parts is worth on a CPU (rose_jax/models/conv.py).

    python scripts/bench_conv.py [--width 16] [--batch 128] [--pairs 10]

Gradient steps of a ResNet-18 on 32 x 32 images, with the parts and without, in turns; the median ratio counts.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

from rose_jax.models import conv, resnet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    images = jax.random.normal(jax.random.key(0), (arguments.batch, 32, 32, 3))
    steps = {name: gradient_step(arguments.width, name == "parts", images) for name in ("whole", "parts")}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.pairs):
        for name, step in steps.items():
            begun = time.perf_counter()
            jax.block_until_ready(step())
            seconds[name].append(time.perf_counter() - begun)
    ratios = [whole / parts for whole, parts in zip(seconds["whole"], seconds["parts"], strict=True)]
    for name, values in seconds.items():
        print(f"{name:6} {1e3 * statistics.median(values) / arguments.batch:8.2f} ms per image")
    print(f"whole / parts: {statistics.median(ratios):.2f} (median of {arguments.pairs} pairs)")


def gradient_step(width: int, in_parts: bool, images: jax.Array):
    """A compiled () -> gradient of an arbitrary loss, forward pass included."""
    usual = resnet.convolution
    resnet.convolution = lambda: conv.summed_in_parts if in_parts else None
    try:
        encoder = resnet.resnet18(width)
        variables = encoder.init(jax.random.key(1), images[0])

        def loss(params):
            out, _ = encoder.apply(variables | {"params": params}, images, norm="batch")
            return jnp.square(out["feature"]).mean()

        step = jax.jit(jax.grad(loss)).lower(variables["params"]).compile()
    finally:
        resnet.convolution = usual
    jax.block_until_ready(step(variables["params"]))
    return lambda: step(variables["params"])


if __name__ == "__main__":
    main()
