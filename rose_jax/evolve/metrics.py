"""What a feature is compared in: the paper's cosine, the queue's own metric, or the caller's covariances, evolved."""

from typing import Any

import numpy as np

from rose_jax.classifiers import ncm, queue, whitened
from rose_jax.config import MetricOptions
from rose_jax.errors import UserError, unknown
from rose_jax.evolve.inputs import labels_of, matrix, not_negative, square
from rose_jax.statistics import covariance as cov
from rose_jax.types import Classifier, PyTree

METRICS = ("queue", "evolved")


def check(metric: str | None, ridge: float | None) -> None:
    if metric is not None and metric not in METRICS:
        raise unknown("metric", str(metric), METRICS)
    if ridge is not None and metric is None:
        raise UserError(f"metric_ridge {ridge} needs a metric: {' or '.join(METRICS)}.")
    if ridge is not None:
        not_negative("metric_ridge", ridge)


def classifier(metric: str | None, ridge: float | None) -> Classifier:
    if metric == "queue":
        return queue.make(_queue_ridge(ridge))
    return ncm.PLAIN_COSINE if metric is None else whitened.from_options(MetricOptions(source="evolved"))


def params(
    metric: str | None,
    ridge: float | None,
    old_covariance: Any,
    new_covariance: Any,
    dim: int,
    classes: tuple[int, int],
) -> PyTree:
    """What the classifier starts from. classes: how many are old, and new."""
    given = {"old_covariance": old_covariance, "new_covariance": new_covariance}
    if metric != "evolved":
        needless = [name for name, value in given.items() if value is not None]
        if needless:
            raise UserError(f"{', '.join(needless)} is read with metric='evolved' only; metric is {metric!r}.")
        return queue.begin(dim, sum(classes), _queue_ridge(ridge)) if metric == "queue" else {}
    if not classes[1] and new_covariance is None:  # no new class: nothing to average in
        given["new_covariance"] = np.zeros((dim, dim), np.float32)
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise UserError(
            f"metric='evolved' needs {' and '.join(missing)}: [d, d] = {(dim, dim)}, mean within-class covariances "
            "(rose_jax.within_class_covariance). metric='queue' needs neither."
        )
    old, new = (square(name, value, dim) for name, value in given.items())
    rho = MetricOptions().ridge if ridge is None else ridge
    found = whitened.measured((new, classes[1]), (old, classes[0]), rho, cov.no_pairs(dim))
    return {name: np.asarray(value, np.float32) for name, value in found.items()}


def _queue_ridge(ridge: float | None) -> float:
    return MetricOptions().queue_ridge if ridge is None else ridge


def within_class_covariance(features: Any, labels: Any) -> np.ndarray:
    """The mean over classes of the covariance of their features: float32 [d, d].

    features [n, d], labels [n] integers from 0. Rows with NaN or Inf are left out, and so is a class of one image.
    """
    rows = np.asarray(matrix("features", features, "[n, d]"))
    classes = int(np.max(labels, initial=-1)) + 1
    known = labels_of("labels", labels, len(rows), max(classes, 1), "the classes")
    within = cov.within_class(rows, known, max(classes, 1))
    if not within.classes:
        raise UserError("No class has two readable images, so that there is no covariance within classes.")
    return within.shared.astype(np.float32)
