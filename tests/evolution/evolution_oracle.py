"""Alg. 2 in float64 NumPy, written for reading: lists as queues, one dense solve per update."""

import numpy as np


def features(rng, n, dim=24, classes=12, old=8, dead=0, spread=0.4):
    """A stage in miniature: prototypes [C, d], which rows move, W₀ and n pairs of post-ReLU features."""
    prototypes = np.abs(rng.normal(size=(classes, dim)))
    projector = np.eye(dim) + 0.15 * rng.normal(size=(dim, dim))
    drift = projector + 0.15 * rng.normal(size=(dim, dim))
    labels = rng.integers(0, classes, n)
    z_old = np.maximum(prototypes[labels] + spread * rng.normal(size=(n, dim)), 0)
    z_new = np.maximum(z_old @ drift + 0.1 * rng.normal(size=(n, dim)), 0)
    if dead:
        for array in (prototypes, z_old, z_new):
            array[:, :dead] = 0
    prototypes[old:] = np.abs(prototypes[old:] @ drift)
    as_float32 = [x.astype(np.float32) for x in (prototypes, projector, z_old, z_new)]
    return as_float32[0], np.arange(classes) < old, *as_float32[1:], labels


def evolve(
    pseudo, prototypes, moves, projector, z_old, z_new, rho, granularity=1, enters=None, center=0.0, transform=None
):
    """Cosines [n, C] after each group's update, and the prototypes at the end.

    pseudo [S, d] are the queue's first old features. The ridge problem is solved literally:
    argmin ‖Q W − Q'‖² + λ‖W − W₀‖².
    """
    prototypes, projector, z_old, z_new = (
        np.asarray(x, np.float64) for x in (prototypes, projector, z_old, z_new)
    )
    transform = np.eye(len(projector)) if transform is None else transform
    queue_old = list(np.asarray(pseudo, np.float64))
    queue_new = [z @ projector for z in queue_old]
    lam = rho * np.sum(np.square(queue_old)) / len(projector)
    scores = []
    moved = np.where(moves[:, None], prototypes @ projector, prototypes)
    for start in range(0, len(z_new), granularity):
        for i in range(start, min(start + granularity, len(z_new))):
            if enters is None or enters[i]:
                queue_old, queue_new = [*queue_old[1:], z_old[i]], [*queue_new[1:], z_new[i]]
        q, t = np.asarray(queue_old), np.asarray(queue_new)
        rows = np.concatenate([q, np.sqrt(lam) * np.eye(len(projector))])
        drift_map = np.linalg.lstsq(rows, np.concatenate([t, np.sqrt(lam) * projector]), rcond=None)[0]
        moved = np.where(moves[:, None], prototypes @ drift_map, prototypes)
        table = (moved - center) @ transform
        for z in z_new[start : start + granularity]:
            z = (z - center) @ transform
            scores.append(table @ z / (np.linalg.norm(table, axis=1) * np.linalg.norm(z)))
    return np.asarray(scores), moved
