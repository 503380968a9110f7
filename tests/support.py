"""What several test files need."""

import base64
import contextlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import warnings
from types import FrameType

import jax
import numpy as np
import pytest
from absl.testing import flagsaver
from fakes import FakeStage as FakeStage
from fakes import make_parts as make_parts

from rose_jax import main as main_lib
from rose_jax.models.tiny import STAGES
from rose_jax.report import style
from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.sharding import Layout

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsVEzgQAAAABJRU5ErkJggg=="
)


@contextlib.contextmanager
def unpainted():
    """Figures are made, only not painted, which would be much of the time of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "png", lambda figure: PIXEL)
        patch.setattr(style, "vector", lambda figure, kind: b"")
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


def exit_code(*arguments):
    """Of `python -m rose_jax.main ARGUMENTS`, in this process; what it prints, capsys has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main_lib.app, "run", lambda main, flags_parser: call_main(*arguments))
        try:
            main_lib.run()
        except SystemExit as end:
            return end.code
    return 0


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


def callers():
    """Names of the functions that are running, innermost first."""
    frame: FrameType | None = sys._getframe(1)
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
