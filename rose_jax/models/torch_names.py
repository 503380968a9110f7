"""Encoder variables under the names and in the layout of a PyTorch state_dict; ResNets as torchvision names them."""

import re
from typing import Any

import numpy as np

_NORM = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def state_dict(variables: Any) -> dict[str, np.ndarray]:
    """float32 arrays by name. Kernels [h, w, in, out] become [out, in, h, w]."""
    found: dict[str, np.ndarray] = {}
    for collection in ("params", "batch_stats"):
        for path, value in _leaves(variables[collection]):
            array = np.asarray(value, np.float32)
            *modules, leaf = path
            if leaf == "kernel":
                found[f"{_module(modules)}.weight"] = np.ascontiguousarray(array.transpose(3, 2, 0, 1))
            else:
                found[f"{_module(modules)}.{_NORM[leaf]}"] = array
    return dict(sorted(found.items()))


def _module(modules: list[str]) -> str:
    """stem -> conv1, stem_norm -> bn1, layer2_0/norm1 -> layer2.0.bn1, layer2_0/downsample_norm -> layer2.0.downsample.1"""
    renamed = {
        "stem": "conv1",
        "stem_norm": "bn1",
        "downsample": "downsample.0",
        "downsample_norm": "downsample.1",
    }
    parts = []
    for name in modules:
        name = renamed.get(name, name)
        block = re.fullmatch(r"(layer\d)_(\d)", name)
        name = f"{block[1]}.{block[2]}" if block else name
        parts.append(re.sub(r"^norm(\d)$", r"bn\1", name))
    return ".".join(parts)


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [leaf for key, value in tree.items() for leaf in _leaves(value, (*path, key))]
