"""The encoder against published sizes, and its BatchNorm against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rose_jax import models
from rose_jax.config import ModelOptions
from rose_jax.errors import UserError
from rose_jax.models import conv
from rose_jax.models.heads import head_logits, init_head, normalize
from rose_jax.models.norm import BatchNorm
from rose_jax.models.resnet import resnet18
from rose_jax.runtime.target import tracing_for


def shapes(width, stem, size):
    encoder = resnet18(width, stem)
    variables = jax.eval_shape(encoder.init, jax.random.key(0), jnp.zeros((size, size, 3)))
    images = jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)
    return variables, jax.eval_shape(lambda v, x: encoder.apply(v, x)[0], variables, images)


@pytest.mark.parametrize(
    ("stem", "size", "parameters", "layer3"),
    [
        # torchvision's ResNet-18 without its classifier has 11,176,512 parameters; a 3 x 3 stem saves 7,680
        ("conv7_pool", 224, 11_176_512, 14),
        ("conv3_pool", 224, 11_168_832, 28),
        ("small", 32, 11_168_832, 8),
        ("small", 64, 11_168_832, 16),
    ],
)
def test_sizes(stem, size, parameters, layer3):
    variables, out = shapes(64, stem, size)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == parameters
    assert out["feature"].shape == (2, 512)
    assert out["layer3"].shape == (2, layer3, layer3, 256)


def test_unknown_stem_names_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'small'"):
        resnet18(8, "smal")


def test_initial_values_are_kaiming_fan_out():
    variables = resnet18(16).init(jax.random.key(0), jnp.zeros((8, 8, 3)))
    kernel = variables["params"]["layer4_1"]["conv2"]["kernel"]  # 3 x 3 x 128 x 128
    assert np.std(kernel) == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)
    assert abs(np.mean(kernel)) < 1e-3
    flat = [np.ravel(leaf)[:9] for leaf in jax.tree.leaves(variables["params"]) if leaf.ndim == 4]
    assert len({tuple(f) for f in flat}) == len(flat), "every kernel has draws of its own"


@pytest.mark.parametrize("rows", [6, 4])
def test_batch_norm_is_torch_s_and_blind_to_padding(rows):
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, (6, 4, 4, 3))
    mask = np.arange(6) < rows
    module = BatchNorm()
    variables = module.init(jax.random.key(0), jnp.zeros((1, 4, 4, 3)), jnp.ones(1), "batch")
    out, mutated = module.apply(
        variables, jnp.asarray(x, jnp.float32), jnp.asarray(mask), "batch", mutable=["batch_stats"]
    )
    real = x[:rows].reshape(-1, 3)
    mean, var = real.mean(0), real.var(0)
    np.testing.assert_allclose(out[:rows], ((x - mean) / np.sqrt(var + 1e-5))[:rows], rtol=1e-4, atol=1e-5)
    stats = mutated["batch_stats"]
    np.testing.assert_allclose(stats["mean"], 0.1 * mean, rtol=1e-4)
    unbiased = real.var(0, ddof=1)  # torch keeps the unbiased variance
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * unbiased, rtol=1e-4)
    evaluated = module.apply(
        mutated | {"params": variables["params"]}, jnp.asarray(x, jnp.float32), mask, "running"
    )
    expected = (x - 0.1 * mean) / np.sqrt(0.9 + 0.1 * unbiased + 1e-5)
    np.testing.assert_allclose(evaluated, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("running", "dtype"),
    [(0.0, jnp.float32), (0.99, jnp.float32), (-10.0, jnp.float32), (0.0, jnp.bfloat16), (0.99, jnp.bfloat16)],
)
def test_batch_norm_of_a_far_channel(running, dtype):
    """Statistics are summed about the running mean; wherever that is, they are those of float64 and so is the gradient."""
    rng = np.random.default_rng(0)
    centre, spread = np.array([1e3, 0.0, -200.0]), np.array([1.0, 1.0, 0.1])
    if dtype == jnp.bfloat16:
        centre *= 0.05  # eight bits hold no more
    x = jnp.asarray(centre + spread * rng.normal(size=(6, 8, 8, 3)), dtype)
    direction, mask = rng.normal(size=x.shape), np.arange(6) < 5
    variables = BatchNorm().init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), jnp.ones(1), "batch")
    variables["batch_stats"]["mean"] = jnp.asarray(running * centre, jnp.float32)

    def weighed(x):
        out, mutated = BatchNorm().apply(variables, x, jnp.asarray(mask), "batch", mutable=["batch_stats"])
        return jnp.sum(out * direction), (out, mutated["batch_stats"])

    gradient, (out, stats) = jax.grad(weighed, has_aux=True)(x)
    exact, weight = np.asarray(x, np.float64), mask[:, None, None, None] / (5 * 64)
    mean = (exact * weight).sum((0, 1, 2))
    var = (np.square(exact - mean) * weight).sum((0, 1, 2))
    unit = (exact - mean) / np.sqrt(var + 1e-5)
    sums = direction.sum((0, 1, 2)) + unit * (direction * unit).sum((0, 1, 2))
    expected = (direction - weight * sums) / np.sqrt(var + 1e-5)
    coarse = 0.02 if dtype == jnp.bfloat16 else 0.0  # the rounding of outputs
    np.testing.assert_allclose(np.asarray(out, float)[:5], unit[:5], rtol=1e-3 + coarse, atol=2e-3 + coarse)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * var * 320 / 319, rtol=1e-3)
    scale = np.abs(expected).max((0, 1, 2))
    np.testing.assert_allclose(np.asarray(gradient, float) / scale, expected / scale, atol=1e-3 + coarse)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_heads(kind):
    rng = np.random.default_rng(0)
    head = init_head(kind, jax.random.key(0), 5, 8)
    feature = rng.normal(size=(3, 8))
    weight = np.asarray(head["weight"], float)
    if kind == "cosine":
        head["scale"] = jnp.float32(3)
        unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
        expected = 3 * unit(feature) @ unit(weight).T
    else:
        expected = feature @ weight.T + np.asarray(head["bias"])
    np.testing.assert_allclose(
        head_logits(head, jnp.asarray(feature, jnp.float32)), expected, rtol=1e-4, atol=1e-6
    )


def test_normalize_of_a_zero_row_is_zero_with_a_finite_gradient():
    gradient = jax.grad(lambda x: normalize(x).sum())(jnp.zeros((1, 4)))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("n", "side", "stride", "channels", "kernel"),
    [
        (40, 16, 1, 4, 3),  # the kernel's gradient in parts
        (17, 32, 2, 3, 3),
        (16, 32, 1, 3, 3),  # one part
        (20, 8, 1, 4, 3),  # XLA's own
        (9, 2, 1, 4, 3),  # one product over patches
        (9, 4, 2, 4, 3),
        (9, 3, 2, 4, 3),
        (9, 4, 2, 4, 1),
        (9, 1, 1, 4, 3),
    ],
)
def test_convolutions_by_shape_are_convolutions(n, side, stride, channels, kernel):
    """Value and both gradients are those of the plain convolution, in float64 to rounding."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, w = (
            jnp.asarray(rng.normal(size=(n, side, side, channels))),
            jnp.asarray(rng.normal(size=(kernel, kernel, channels, 5))),
        )
        options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        edge = ((kernel // 2,) * 2,) * 2
        out_and_pull = [
            jax.vjp(lambda x, w, f=f: f(x, w, (stride, stride), edge, **options), x, w)
            for f in (jax.lax.conv_general_dilated, conv.by_shape)
        ]
        (expected, plain), (value, parts) = out_and_pull
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
        out = jnp.asarray(rng.normal(size=expected.shape))
        for mine, theirs in zip(parts(out), plain(out), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-10)


def test_only_one_device_of_a_cpu_convolves_by_shape():
    for platform, devices, chosen in (
        ("cpu", 1, conv.by_shape),
        ("cpu", 8, None),
        ("tpu", 1, None),
        ("gpu", 1, None),
    ):
        with tracing_for(platform, devices):
            assert conv.convolution() is chosen


def numpy_enlarged(image, side):
    """Bilinear: each pixel between the centres of the four around it, those beyond the edge being the edge's."""
    size = len(image)
    at = (np.arange(side) + 0.5) * size / side - 0.5
    low = np.floor(at).astype(int)
    share = (at - low)[:, None]
    rows, next_rows = np.clip(low, 0, size - 1), np.clip(low + 1, 0, size - 1)

    def between(a):
        return (1 - share[..., None]) * a[rows] + share[..., None] * a[next_rows]

    return between(between(image).swapaxes(0, 1)).swapaxes(0, 1)


def test_images_are_enlarged_before_the_first_layer():
    """model.enlarge, with which FeTrIL's authors see CIFAR-100 at 224 x 224."""
    options = ModelOptions(encoder="tiny", width=1, stem="by_size", enlarge=12)
    encoder, plain = (
        models.make_encoder(options, 5),
        models.make_encoder(dataclasses.replace(options, enlarge=0), 12),
    )
    images = np.random.default_rng(0).random((2, 5, 5, 3)).astype(np.float32)
    variables = encoder.init(jax.random.key(0), images[0])
    large = np.stack([numpy_enlarged(image, 12) for image in images]).astype(np.float32)
    found, expected = (e.apply(variables, x)[0]["feature"] for e, x in ((encoder, images), (plain, large)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert models.stem_of(ModelOptions(stem="by_size", enlarge=224), 32) == "conv7_pool"
    with pytest.raises(UserError, match=r"model.enlarge is 12, but images have 32 pixels"):
        models.make_encoder(options, 32)
