"""What several test files need."""

import jax
import numpy as np

from rose_jax.runtime.checkpoint import Checkpoints
from rose_jax.runtime.sharding import Layout


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
