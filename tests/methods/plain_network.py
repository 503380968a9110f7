"""ResNet-18 and `tiny` without BatchNorm, in float64 NumPy: convolutions with a bias, some with a 1x1 one beside them.

A network is {path: (kernel [k, k, c, c'], bias [c'], adapter [1, 1, c, c'] or None)}.
"""

import numpy as np

from rose_jax.models.resnet import BLOCKS_PER_STAGE
from rose_jax.models.tiny import STAGES


def folded(variables, path=""):
    """SSRE's re-organisation as its paper has it: w gamma / sigma, bias beta - mu gamma / sigma."""
    params, stats, layers = variables["params"], variables["batch_stats"], {}
    for name, layer in params.items():
        if "kernel" in layer:
            norm = name.replace("conv", "norm") if "conv" in name else f"{name}_norm"
            gamma, beta = (np.asarray(params[norm][k], np.float64) for k in ("scale", "bias"))
            mu, v = (np.asarray(stats[norm][k], np.float64) for k in ("mean", "var"))
            factor = gamma / np.sqrt(v + 1e-5)
            layers[path + name] = (np.asarray(layer["kernel"], np.float64) * factor, beta - mu * factor, None)
        elif "norm" not in name:
            layers |= folded({"params": layer, "batch_stats": stats[name]}, f"{path}{name}/")
    return layers


def with_adapters(layers, adapters, path=""):
    for name, value in adapters.items():
        if isinstance(value, dict):
            layers = with_adapters(layers, value, f"{path}{name}/")
        else:
            kernel, bias, _ = layers[path + name]
            layers = layers | {path + name: (kernel, bias, np.asarray(value, np.float64))}
    return layers


def convolve(layer, x, stride=1):
    kernel, bias, adapter = layer
    out = correlate(x, kernel, stride) + bias
    return out if adapter is None else out + correlate(x, adapter, stride)


def correlate(x, kernel, stride):
    size = len(kernel)
    padded = np.pad(x, ((0, 0), *[(size // 2, size // 2)] * 2, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
    return np.einsum("nhwcij,ijcd->nhwd", windows[:, ::stride, ::stride], kernel, optimize=True)


def relu(x):
    return np.maximum(x, 0)


def tiny(layers, images):
    x = np.asarray(images, np.float64)
    for stage, (_, stride) in enumerate(STAGES):
        x = relu(convolve(layers[f"conv{stage}"], x, stride))
    return x.mean((1, 2))


def resnet18(layers, images):
    x = relu(convolve(layers["stem"], np.asarray(images, np.float64)))
    for stage, blocks in enumerate(BLOCKS_PER_STAGE):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}_{block}", 2 if stage and not block else 1
            inner = relu(convolve(layers[f"{name}/conv1"], x, stride))
            inner = convolve(layers[f"{name}/conv2"], inner)
            down = layers.get(f"{name}/downsample")
            x = relu(inner + (x if down is None else convolve(down, x, stride)))
    return x.mean((1, 2))
