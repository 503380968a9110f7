"""What a stream's labels are worth without an evolution, and whether its two encoders were mixed up."""

import numpy as np

Arrays = dict[str, np.ndarray]
_ROWS = 4096  # of a stream are enough to tell old from new


def predictions(arrays: Arrays) -> dict[str, np.ndarray]:
    """Labels [n] by the plain cosine to prototypes that are never moved, and to those moved once by the projector."""
    old, new = arrays["old_prototypes"], arrays["new_prototypes"]
    tables = {"unmoved": np.concatenate([old, new])}
    if "projector" in arrays:
        tables["projector"] = np.concatenate([old @ arrays["projector"], new])
    return {name: nearest(arrays["z_new"], table) for name, table in tables.items()}


def nearest(features: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The row of the table [C, d] with the largest cosine, for each feature [n, d]; -1 for NaN and Inf."""
    readable = np.isfinite(features).all(axis=1)
    rows = np.where(readable[:, None], features, 0).astype(np.float32)
    return np.where(readable, np.argmax(rows @ _unit(table).T, axis=1), -1)


def looks_swapped(arrays: Arrays) -> bool:
    """Whether z_old and z_new fit better the other way round.

    With a projector: whether it maps z_new to z_old better than z_old to z_new. Without: whether the old classes lie
    nearer to z_new and the new ones nearer to z_old.
    """
    z_old, z_new = (np.asarray(arrays[name][:_ROWS], np.float64) for name in ("z_old", "z_new"))
    readable = np.isfinite(z_old).all(axis=1) & np.isfinite(z_new).all(axis=1)
    z_old, z_new = z_old[readable], z_new[readable]
    if not len(z_old):
        return False
    if "projector" in arrays and not np.allclose(arrays["projector"], np.eye(z_old.shape[1])):
        return bool(_misfit(z_new @ arrays["projector"], z_old) < _misfit(z_old @ arrays["projector"], z_new))
    old, new = arrays["old_prototypes"], arrays["new_prototypes"]
    return bool(_likeness(z_new, old) + _likeness(z_old, new) > _likeness(z_old, old) + _likeness(z_new, new))


def _misfit(mapped: np.ndarray, target: np.ndarray) -> float:
    return float(np.square(mapped - target).sum() / max(np.square(target).sum(), np.finfo(float).tiny))


def _likeness(features: np.ndarray, table: np.ndarray) -> float:
    """Mean over the prototypes of the largest cosine that a feature has to each; 0 where there is none.

    Over prototypes, not over features: most of these belong to classes of the other table.
    """
    return float((_unit(features) @ _unit(table).T).max(axis=0).mean()) if len(table) else 0.0


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
