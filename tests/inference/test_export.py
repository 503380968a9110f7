"""Exported weights: PyTorch's names and layout, and features computed from the file alone, in float64 NumPy."""

import json

import jax
import numpy as np
import pytest

from rose_jax import export
from rose_jax.models.resnet import resnet18
from rose_jax.models.torch_names import state_dict


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    about, numbers = header.pop("__metadata__"), data[8 + length :]
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        arrays[name] = np.frombuffer(numbers[first:last], "<f4").reshape(entry["shape"]).astype(np.float64)
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(numbers)
    return arrays, about


def conv(x, kernel, stride):
    """torch's Conv2d without bias and with padding k // 2: x [n, c, h, w], kernel [out, in, k, k]."""
    edge = kernel.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,dcij->ndhw", windows[:, :, ::stride, ::stride], kernel)


def norm(x, weights, name):
    """torch's BatchNorm2d in evaluation."""
    scale, bias, mean, var = (
        weights[f"{name}.{part}"][None, :, None, None]
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


def resnet_features(weights, images):
    """torchvision's ResNet-18 with a 3 x 3 stem of stride 1 and without a max-pool."""
    x = np.maximum(norm(conv(images, weights["conv1.weight"], 1), weights, "bn1"), 0)
    for stage in range(1, 5):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = np.maximum(norm(conv(x, weights[f"{name}.conv1.weight"], stride), weights, f"{name}.bn1"), 0)
            y = norm(conv(y, weights[f"{name}.conv2.weight"], 1), weights, f"{name}.bn2")
            if f"{name}.downsample.0.weight" in weights:
                shortcut = conv(x, weights[f"{name}.downsample.0.weight"], stride)
                x = norm(shortcut, weights, f"{name}.downsample.1")
            x = np.maximum(y + x, 0)
    return x.mean((2, 3))


def test_a_resnet_has_torchvision_s_names_and_features(tmp_path):
    encoder = resnet18(width=2)
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (3, 8, 8, 3))
    variables = encoder.init(keys[1], images[0])
    leaves, structure = jax.tree.flatten(variables)  # norms that are not the identity
    noise = [1 + 0.3 * jax.random.normal(jax.random.fold_in(keys[2], i), x.shape) for i, x in enumerate(leaves)]
    variables = jax.tree.unflatten(
        structure, [x * n if x.ndim == 4 else np.abs(x + n - 1) for x, n in zip(leaves, noise, strict=True)]
    )
    path = tmp_path / "encoder.safetensors"
    export.write_safetensors(path, state_dict(variables), {"encoder": "resnet18"})
    weights, _ = read_safetensors(path)
    assert len(weights) == 20 + 4 * 20  # as torchvision's state_dict without fc and num_batches_tracked
    assert weights["layer2.0.downsample.0.weight"].shape == (4, 2, 1, 1)
    assert weights["layer4.1.bn2.running_var"].shape == (16,)
    expected = jax.jit(lambda v, x: encoder.apply(v, x)[0]["feature"])(variables, images)
    found = resnet_features(weights, np.asarray(images, np.float64).transpose(0, 3, 1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_command_line(used, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "load", lambda *_, **__: used.model)
    path = tmp_path / "encoder.safetensors"
    assert export.main(["--workdir", str(used.workdir), "--out", str(path)]) == 0
    assert "10 classes" in capsys.readouterr().out
    weights, about = read_safetensors(path)
    assert json.loads(about["class_names"]) == list(used.model.class_names)
    assert (about["encoder"], about["width"], about["image_size"], about["pool"]) == ("tiny", "2", "8", "1")
    mean, std = (np.array(json.loads(about[key]))[None, :, None, None] for key in ("mean", "std"))
    x = (used.images[:9].transpose(0, 3, 1, 2) / 255 - mean) / std
    for layer, stride in enumerate((2, 2, 1)):
        x = np.maximum(norm(conv(x, weights[f"conv{layer}.weight"], stride), weights, f"bn{layer}"), 0)
    np.testing.assert_allclose(x.mean((2, 3)), used.model.encode(used.images[:9]), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(weights["prototypes"], used.model.prototypes)


def test_a_run_that_is_not_there(tmp_path, capsys):
    assert export.main(["--workdir", str(tmp_path)]) == 2
    assert "There is no run in" in capsys.readouterr().err


def test_a_place_that_is_no_file(tmp_path, capsys):
    assert export.main(["--workdir", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} is a folder. Give the name of a file in it" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["Größe", "日本"])
def test_class_names_in_any_script(tmp_path, text):
    path = tmp_path / "x.safetensors"
    export.write_safetensors(path, {"a": np.ones((2, 3))}, {"class_names": json.dumps([text])})
    arrays, about = read_safetensors(path)
    assert json.loads(about["class_names"]) == [text]
    assert arrays["a"].tolist() == [[1.0] * 3] * 2
