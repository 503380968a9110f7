"""From predictions to the figures of a table. NumPy only; accuracies are per cent, averaged over classes."""

from typing import Any

import numpy as np


def class_accuracy(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """[C] accuracy of each class, NaN for a class without images."""
    total = np.bincount(labels, minlength=num_classes).astype(float)
    hit = np.bincount(labels[labels == predictions], minlength=num_classes)
    return 100 * np.divide(hit, total, out=np.full(num_classes, np.nan), where=total > 0)


def accuracy_matrix(per_class: list[np.ndarray], task_of_class: np.ndarray) -> np.ndarray:
    """[stages, T] mean accuracy over the classes of each task after each stage, NaN where not seen yet."""
    tasks = int(task_of_class.max()) + 1
    matrix = np.full((len(per_class), tasks), np.nan)
    for stage, accuracy in enumerate(per_class):
        for task in range(min(stage + 1, tasks)):
            matrix[stage, task] = _mean(accuracy[task_of_class == task])
    return matrix


def forgetting(matrix: np.ndarray) -> float:
    """Mean over earlier tasks of best accuracy so far minus accuracy now (Chaudhry et al.)."""
    last = len(matrix) - 1
    if last < 1:
        return float("nan")
    earlier = matrix[:, :last]
    return _mean(np.nanmax(earlier[:last], 0) - earlier[last])


def confusion(labels: np.ndarray, predictions: np.ndarray, task_of_class: np.ndarray) -> np.ndarray:
    """[T, T] counts, rows the true task, columns the predicted one; unscored images are left out."""
    tasks = int(task_of_class.max()) + 1
    scored = predictions >= 0
    table = np.zeros((tasks, tasks), int)
    np.add.at(table, (task_of_class[labels[scored]], task_of_class[predictions[scored]]), 1)
    return table


def drift_cosines(
    moved: np.ndarray, unmoved: np.ndarray, true_new: np.ndarray, true_old: np.ndarray
) -> np.ndarray:
    """[k] cosine between a row's own move of each old prototype and the true class mean's move.

    A prototype that did not move has no direction: NaN.
    """
    own, real = moved - unmoved, true_new - true_old
    norms = np.linalg.norm(own, axis=1) * np.linalg.norm(real, axis=1)
    return np.divide((own * real).sum(1), norms, out=np.full(len(own), np.nan), where=norms > 0)


def summary(
    labels: list[np.ndarray], predictions: list[np.ndarray], task_of_class: np.ndarray, start: str
) -> dict[str, Any]:
    """Everything about one scored row that follows from its predictions, stage by stage.

    old/new as in the paper's figure: cold start, the last task against the rest; warm start, the first task
    against the rest.
    """
    num_classes = len(task_of_class)
    per_class = [class_accuracy(y, p, num_classes) for y, p in zip(labels, predictions, strict=True)]
    per_stage = [_mean(accuracy) for accuracy in per_class]
    matrix = accuracy_matrix(per_class, task_of_class)
    last_stage = len(per_class) - 1
    is_new = task_of_class == last_stage if start == "cold" else task_of_class > 0
    return {
        "last": per_stage[-1],
        "average": _mean(np.array(per_stage)),
        "per_stage": per_stage,
        "matrix": matrix.tolist(),
        "old": _mean(per_class[-1][~is_new]),
        "new": _mean(per_class[-1][is_new]),
        "forgetting": forgetting(matrix),
        "per_class": per_class[-1].tolist(),
        "confusion": confusion(labels[-1], predictions[-1], task_of_class).tolist(),
    }


def _mean(values: np.ndarray) -> float:
    """nanmean that says NaN, without a warning, of nothing."""
    values = np.asarray(values, float)
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else float("nan")
