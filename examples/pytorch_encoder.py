"""An encoder that rose_jax has trained, in PyTorch: weights, features and labels. Needs torch, safetensors, pillow, numpy.

python -m rose_jax.export --workdir RUN                       # wherever rose_jax runs; writes encoder.safetensors
python -m rose_jax.predict --workdir RUN IMAGES --features features.npz
python examples/pytorch_encoder.py encoder.safetensors IMAGES                    # labels, wherever PyTorch runs
python examples/pytorch_encoder.py encoder.safetensors --compare features.npz    # the same features to 1e-4?
"""

import json
import sys

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors import safe_open
from torch import nn

STEMS = {
    "small": (3, 1, False),
    "conv3_pool": (3, 1, True),
    "conv7_pool": (7, 2, True),
}  # kernel, stride, max-pool


def load(path: str) -> tuple[nn.Module, torch.Tensor, dict]:
    """The encoder, prototypes [classes, d], and what the file says of images and classes."""
    with safe_open(path, "pt") as file:
        about = file.metadata()
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
    prototypes = weights.pop("prototypes")
    if about["encoder"] != "resnet18":
        raise SystemExit(f"This example builds a resnet18; the file holds {about['encoder']!r}.")
    encoder = ResNet18(int(about["width"]), about["stem"], int(about.get("enlarge", 0)))
    encoder.load_state_dict(weights)
    return encoder.eval(), prototypes, about


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride > 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.downsample(x)).relu()


class ResNet18(nn.Module):
    """torchvision's names and, with width 64 and the stem conv7_pool, its network without the last layer."""

    def __init__(self, width: int, stem: str, enlarge: int = 0):
        """enlarge: to so many pixels a side; 0: not at all."""
        super().__init__()
        kernel, stride, pool = STEMS[stem]
        self.enlarge = enlarge
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1) if pool else nn.Identity()
        for stage in range(4):
            inputs, outputs = width * 2 ** max(stage - 1, 0), width * 2**stage
            blocks = Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.enlarge:
            images = nn.functional.interpolate(images, size=(self.enlarge, self.enlarge), mode="bilinear")
        x = self.pool(self.bn1(self.conv1(images)).relu())
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return x.mean((2, 3))


def pixels(path: str, about: dict) -> torch.Tensor:
    """[3, S, S], cropped and normalised as in rose_jax."""
    image, pool = ImageOps.exif_transpose(Image.open(path)).convert("RGB"), int(about.get("pool", 1))
    size = int(about["image_size"]) * pool  # before whole squares of pixels are averaged to one
    short = size if about["crop"] == "central square" else size * 256 // 224
    whole = round if short == size else int
    width, height = (whole(short * side / min(image.size)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = ((side - size) // 2 if short == size else round((side - size) / 2) for side in (width, height))
    square = np.asarray(image.crop((left, top, left + size, top + size)), np.int64)
    parts = square.reshape(size // pool, pool, size // pool, pool, 3)
    array = np.float32((parts.sum((1, 3)) + pool**2 // 2) // pool**2) / 255
    mean, std = (np.array(json.loads(about[key]), np.float32) for key in ("mean", "std"))
    return torch.from_numpy((array - mean) / std).permute(2, 0, 1)


@torch.no_grad()
def main() -> None:
    path, *rest = sys.argv[1:] or sys.exit(__doc__)
    encoder, prototypes, about = load(path)
    compared = rest[:1] == ["--compare"]
    expected = np.load(rest[1]) if compared else None
    files = [str(file) for file in expected["files"]] if compared else rest
    images = torch.stack([pixels(file, about) for file in files])
    features = torch.cat([encoder(batch) for batch in images.split(64)])
    if compared:
        difference = np.abs(features.numpy() - expected["features"]).max()
        largest = np.abs(expected["features"]).max()
        print(f"{len(files)} images: largest difference {difference:.2e}, of features up to {largest:.2f}")
        sys.exit(0 if difference < 1e-4 else 1)
    names = json.loads(about["class_names"])
    scores = (
        nn.functional.normalize(features) @ nn.functional.normalize(prototypes).T
    )  # the nearest prototype by cosine
    for file, row in zip(files, scores, strict=True):
        print(f"{file}: {names[int(row.argmax())]} {float(row.max()):.4f}")


if __name__ == "__main__":
    main()
