"""The same ResNet-18 in PyTorch, for `bench conv` where PyTorch is installed. It is no dependency of rose_jax."""

import importlib.util
import os
from collections.abc import Callable

import numpy as np


def available() -> bool:
    return importlib.util.find_spec("torch") is not None


def gradient_step(width: int, shape: tuple[int, ...]) -> Callable[[], object]:
    """() -> gradients of an arbitrary loss, forward pass included; shape: [n, h, w, 3]."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or its threads go on spinning in the others' turns
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int):
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
                *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
            )
            same = before == after and stride == 1
            self.past = (
                nn.Identity()
                if same
                else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            )

        def forward(self, x):
            return torch.relu(self.body(x) + self.past(x))

    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            after = width * 2**stage
            layers.append(Block(channels, after, 2 if stage and not block else 1))
            channels = after
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).train()
    pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).contiguous(memory_format=torch.channels_last)
    network = network.to(memory_format=torch.channels_last)

    def step() -> float:
        """A number, which jax need not wait for."""
        network.zero_grad(set_to_none=True)
        network(images).square().mean().backward()
        return 0.0

    return step
