"""The encoder for tests looks to all others like the one it stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rose_jax.config import Config, ModelOptions, validate
from rose_jax.errors import UserError
from rose_jax.models import ENCODERS, make_encoder


def test_encoders_go_by_their_names():
    config = Config()
    for config.model.encoder in ENCODERS:
        validate(config)
    config.model.encoder = "tinny"
    with pytest.raises(UserError, match="config.model.encoder 'tinny'. Did you mean 'tiny'"):
        validate(config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", ["running", "batch"])
def test_its_outputs_are_those_of_the_resnet(norm, dtype):
    images = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)
    seen = {}
    for name in ENCODERS:
        encoder = make_encoder(ModelOptions(encoder=name, width=8, compute_dtype=dtype))
        variables = jax.eval_shape(encoder.init, jax.random.key(0), jnp.zeros((32, 32, 3)))
        out, stats = jax.eval_shape(lambda v, x, e=encoder: e.apply(v, x, norm=norm), variables, images)
        assert stats == variables["batch_stats"]
        assert out["feature"].shape == (4, encoder.feature_dim)
        seen[name] = out
    assert seen["tiny"] == seen["resnet18"]


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_changes_neither_features_nor_statistics(name):
    encoder = make_encoder(ModelOptions(encoder=name, width=2))
    variables = encoder.init(jax.random.key(0), jnp.zeros((8, 8, 3)))
    images = np.random.default_rng(0).normal(size=(6, 8, 8, 3)).astype(np.float32)
    apply = jax.jit(lambda images, mask: encoder.apply(variables, images, norm="batch", mask=mask))
    alone, alone_stats = apply(images[:4], jnp.ones(4))
    padded, padded_stats = apply(images, jnp.arange(6) < 4)
    np.testing.assert_allclose(padded["feature"][:4], alone["feature"], rtol=1e-4, atol=1e-5)
    for a, b in zip(jax.tree.leaves(alone_stats), jax.tree.leaves(padded_stats), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
