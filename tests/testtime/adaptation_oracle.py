"""Float64 NumPy for test-time methods: the tiny encoder in both modes of its norms, losses, gradients by differences."""

import copy

import jax
import numpy as np
from support import make_parts

from rose_jax.config import Config
from rose_jax.models.tiny import STAGES, tiny
from rose_jax.testtime import ADAPTATIONS
from rose_jax.types import ClassMemory, Model, Start, StreamBatch

C, D, SIDE = 5, 8, 8
SEEN = 4  # the last class has not come yet
EPS = 1e-5


def doubles(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.device_get(tree))


def layer(params, stage, x, stats=None):
    """Convolution, norm and ReLU; stats: running statistics instead of the batch's."""
    _, stride = STAGES[stage]
    kernel, norm = params[f"conv{stage}"]["kernel"], params[f"norm{stage}"]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
    x = np.einsum("nhwcij,ijcd->nhwd", windows, kernel, optimize=True)
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    if stats is not None:
        mean, var = stats[f"norm{stage}"]["mean"], stats[f"norm{stage}"]["var"]
    return np.maximum((x - mean) / np.sqrt(var + EPS) * norm["scale"] + norm["bias"], 0)


def features(params, images, stats=None, stages=(0, 1, 2)):
    x = images
    for stage in stages:
        x = layer(params, stage, x, stats)
    return x.mean((1, 2)) if 2 in stages else x


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softmax(logits):
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def entropy(logits):
    p = softmax(logits)
    return -(p * np.log(p)).sum(-1)


def cosines(z, memory):
    return unit(z) @ unit(np.asarray(memory.mean[:SEEN], np.float64)).T


def gradient(loss, tree, step=1e-5):
    """Central differences of loss(tree) in every number of a tree of float64 arrays."""
    found = jax.tree.map(np.zeros_like, tree)
    for at, (leaf, out) in enumerate(zip(jax.tree.leaves(tree), jax.tree.leaves(found), strict=True)):
        for index in np.ndindex(leaf.shape):
            ends = []
            for sign in (1, -1):
                moved = copy.deepcopy(tree)
                jax.tree.leaves(moved)[at][index] += sign * step
                ends.append(loss(moved))
            out[index] = (ends[0] - ends[1]) / (2 * step)
    return found


def assert_close(ours, theirs, rtol=2e-3, atol=2e-5):
    for a, b in zip(jax.tree.leaves(jax.device_get(ours)), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


class Bench:
    """A method on made-up weights, prototypes and images, without a run around it."""

    def __init__(self, name, seed=0, extra=None, **options):
        """options: "section.key" with __ for the dot."""
        rng = np.random.default_rng(seed)
        self.config = Config()
        self.config.scenario.task_sizes = (2, 2, 1)
        for key, value in options.items():
            section, _, field = key.partition("__")
            setattr(getattr(self.config, section), field, value)
        encoder = tiny(1)
        variables = jax.device_get(encoder.init(jax.random.key(seed), np.zeros((SIDE, SIDE, 3), np.float32)))
        noise = lambda x: (x + 0.2 * rng.random(x.shape)).astype(np.float32)  # noqa: E731
        self.variables = {
            "params": variables["params"] | jax.tree.map(noise, {k: variables["params"][k] for k in NORMS}),
            "batch_stats": jax.tree.map(noise, variables["batch_stats"]),
        }
        mean = (rng.random((C, D)) + 0.05).astype(np.float32)
        self.memory = ClassMemory(mean, np.where(np.arange(C) < SEEN, 0, -1).astype(np.int32))
        self.parts = make_parts(self.config, encoder, C, (SIDE, SIDE, 3))
        self.adaptation = ADAPTATIONS[name].make(self.parts)
        self.model = Model(self.variables, {}, extra or {})
        self.raw = rng.integers(0, 256, (2, 10, SIDE, SIDE, 3), dtype=np.uint8)  # two batches
        self.valid = np.arange(10) < 7  # three rows of padding

    def begin(self, classifier, scale=20.0, fitted=None, kept=None):
        fit = {"scale": np.float32(scale), "own": fitted}
        start = Start(self.memory, np.int32(1), None, {}, jax.random.key(3), self.model, fit)
        blank = self.adaptation.blank(self.model) if kept is None else kept
        return self.adaptation.init(start._replace(kept=blank), classifier)

    def step(self, state, number, classifier):
        batch = StreamBatch(self.valid, self.valid, images=self.raw[number])
        return jax.jit(self.adaptation.step, static_argnums=2)(state, batch, classifier)

    def images(self, number):
        """What the encoder is to see of a batch, in float64."""
        return self.raw[number][self.valid].astype(np.float64) / 255


NORMS = ("norm0", "norm1", "norm2")


def norms_of(params):
    return {name: params[name] for name in NORMS}
