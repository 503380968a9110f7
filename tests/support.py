"""What several test files need."""

import base64
import contextlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import flagsaver

from rose_jax import main as main_lib
from rose_jax.data.scenario import Scenario, make_scenario
from rose_jax.models.tiny import STAGES
from rose_jax.report import style
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.sharding import Layout
from rose_jax.types import Parts

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsVEzgQAAAABJRU5ErkJggg=="
)


@contextlib.contextmanager
def unpainted():
    """Figures are made, only not painted, which would be much of the time of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "png", lambda figure: PIXEL)
        yield


def load_script(name):
    """scripts/NAME as a module."""
    loader = importlib.machinery.SourceFileLoader(name, f"scripts/{name}")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def call_main(*arguments):
    """`python -m rose_jax.main ARGUMENTS` in this process: a UserError that would be its message is raised."""
    saved, handlers = flagsaver.save_flag_values(), logging.root.handlers[:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["main", *map(str, arguments)])
        patch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # main adds to it
        patch.setenv("JAX_COMPILATION_CACHE_DIR", jax.config.jax_compilation_cache_dir)  # lest main sets another
        try:
            with warnings.catch_warnings(category=DeprecationWarning, action="ignore"):  # of ml_collections
                parsed = main_lib._parse(sys.argv)
            main_lib.main(parsed)
        finally:
            flagsaver.restore_flag_values(saved)
            logging.root.handlers[:] = handlers


def snapshot_arrays(folder):
    """Every array of a saved snapshot by its path in the tree."""
    checkpoints = Checkpoints(folder.parent)
    assert checkpoints.usable(folder.name)
    with jax.enable_x64(True):
        tree = checkpoints.restore(folder.name, Layout(jax.devices()[:1]).replicated)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    checkpoints.close()
    return arrays


def flip_a_bit(folder):
    """In the largest file of a checkpoint, which is returned: Orbax restores it without a word."""
    path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def make_parts(config, encoder, num_classes, image_shape, transform=None, normalise=None):
    """Parts as experiment.make_features builds them, from whatever a test has."""
    whole = not config.scenario.task_sizes and num_classes % config.scenario.tasks  # a test that has one task
    scenario = (
        Scenario(np.arange(num_classes), (num_classes,)) if whole else make_scenario(config.scenario, num_classes)
    )
    scaled = lambda images: images.astype(jnp.float32) / 255  # noqa: E731
    return Parts(
        config,
        encoder,
        scenario,
        image_shape,
        normalise or scaled,
        transform or (lambda key, images: scaled(images)),
    )


class FakeStage:
    """A types.StageView of what a test gives it, and no more: the one fake of a stage.

    images, labels: of D_t, shown in padded batches after `augment`; encode: (variables, images) -> features;
    train, test: features by encoder.
    """

    def __init__(
        self,
        stage=0,
        *,
        snapshots=(),
        encoder=None,
        images=(),
        labels=None,
        augment=lambda images: images,
        encode=None,
        train=None,
        test=None,
        batch_size=4,
    ):
        self.stage, self.snapshots, self.encoder, self.notes = stage, list(snapshots), encoder, {}
        self.images = images
        self.labels = np.zeros(len(images), np.int32) if labels is None else labels
        self.augment, self._encode, self.batch_size = augment, encode, batch_size
        self.train, self.test = train or {}, test or {}

    def pause(self):
        pass

    def train_batches(self, key, epochs, transform=None):
        for start in epochs * list(range(0, len(self.images), self.batch_size)):
            rows = np.asarray(self.augment(self.images[start : start + self.batch_size]))
            padding = np.full(
                (self.batch_size - len(rows), *rows.shape[1:]), 99, rows.dtype
            )  # must leave no trace
            labels = np.resize(self.labels[start : start + self.batch_size], self.batch_size)
            yield np.concatenate([rows, padding]), labels, np.arange(self.batch_size) < len(rows)

    def encode(self, variables, images):
        return self._encode(variables, images)

    def encode_train(self, variables):
        return np.asarray(self.encode(variables, self.images)), self.labels

    def train_features(self, k):
        return self.train[k], self.labels

    def test_features(self, k, every=1):
        return self.test[k][::every]

    def test_seconds(self, k, every=1):
        return 0.0


def callers():
    """Names of the functions that are running, innermost first."""
    frame = sys._getframe(1)
    names = []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def tiny_features(params, images):
    """models/tiny.py under batch statistics, in float64 NumPy: images [n, h, w, 3] -> [n, d]."""
    x = np.asarray(images, np.float64)
    for stage, (_, stride) in enumerate(STAGES):
        kernel = np.asarray(params[f"conv{stage}"]["kernel"], np.float64)
        norm = {name: np.asarray(value, np.float64) for name, value in params[f"norm{stage}"].items()}
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
        x = np.einsum("nhwcij,ijcd->nhwd", windows, kernel)
        x = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5) * norm["scale"] + norm["bias"]
        x = np.maximum(x, 0)
    return x.mean((1, 2))
