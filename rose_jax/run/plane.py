"""The last stage in a plane: test features under the newest encoder, and the way that old prototypes take among them."""

from typing import Any, NamedTuple

import numpy as np

from rose_jax.run.scoring import Outcome
from rose_jax.run.trajectory import Trajectory

MOST_CLASSES = 8  # old classes whose paths one can still tell apart
MOST_IMAGES = 40  # of a class
DIGITS = 4  # behind the point: a page of results is no place for sixteen


class Plane(NamedTuple):
    """The two principal directions of some test features, all at unit length: classes are told apart by cosines."""

    center: np.ndarray  # [d]
    axes: np.ndarray  # [d, 2]
    classes: np.ndarray  # int [k], the old classes that are shown
    labels: np.ndarray  # int [n], of the images, those of new classes included
    features: np.ndarray  # [n, d]

    def place(self, x: np.ndarray) -> list[Any]:
        """[..., d] -> [..., 2], as JSON takes it."""
        return np.round((unit(x) - self.center) @ self.axes, DIGITS).tolist()


def lay(trajectory: Trajectory) -> Plane:
    """The plane of the last stage. Only the images that are shown pass the encoder once more."""
    images, last = trajectory.images, len(trajectory) - 1
    scenario, labels = images.scenario, images.labels["test"]
    classes = spread_evenly(scenario.offset(last), MOST_CLASSES)
    shown = [*classes, *range(scenario.offset(last), scenario.num_classes)]
    stream = images.stream(last)
    chosen = np.concatenate([stream[labels[stream] == one][:MOST_IMAGES] for one in shown])
    features, _ = trajectory.features.encode(trajectory[last].variables, "test", chosen)
    center, axes = principal(unit(features))
    return Plane(center, axes, classes, labels[chosen], features)


def unit(x: np.ndarray) -> np.ndarray:
    """Rows [..., d] at length 1, in float64; a row of zeros stays one."""
    exact = np.asarray(x, np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def principal(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [d] and the first two principal directions [d, 2]; the largest entry of each is positive."""
    center = features.mean(0)
    _, _, directions = np.linalg.svd(features - center, full_matrices=False)
    axes = np.zeros((features.shape[1], 2))
    axes[:, : len(directions[:2])] = directions[:2].T
    return center, axes * np.where(np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0) < 0, -1.0, 1.0)


def spread_evenly(count: int, most: int) -> np.ndarray:
    """All of range(count), or `most` of them from first to last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def path(outcome: Outcome) -> np.ndarray:
    """[moments, C, d]: from where the stage found the prototypes, along its stream if they move in it, to where they end."""
    along = outcome.path if outcome.path.size else np.asarray(outcome.memory.mean)[None]
    return np.concatenate([outcome.unmoved[None], along])


def described(plane: Plane, true_means: np.ndarray, encoders: str) -> dict[str, Any]:
    """What results.json says of the plane. true_means: [C, d], under the newest encoder; encoders: their digest."""
    return {
        "encoders": encoders,
        "classes": plane.classes.tolist(),
        "true_means": plane.place(true_means[plane.classes]),
        "labels": plane.labels.tolist(),
        "points": plane.place(plane.features),
    }
