"""A small made-up run on disk, with every key that results.json may hold."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from rose_jax.report import style


@pytest.fixture
def no_drawing(monkeypatch):
    """Empty pictures at once, for tests of the words around them: drawing takes most of a report's time."""
    buffer = io.BytesIO()
    Image.new("RGB", (1, 1)).save(buffer, "PNG")
    monkeypatch.setattr(style, "png", lambda figure: buffer.getvalue())
    monkeypatch.setattr(style, "vector", lambda figure, kind: kind.encode())


@pytest.fixture
def make_run(tmp_path):
    """make_run("name", methods=..., tasks=..., change=function(results)) -> workdir."""

    def make(name="run", *, methods=("base", "projector", "gd", "rose"), tasks=3, seed=0, change=None, **setting):
        rng = np.random.RandomState(seed)
        per_task = 100 // tasks
        scores = {}
        for rank, method in enumerate(methods):
            stages = [float(70 - 9 * t + 2 * rank + rng.rand()) for t in range(tasks)]
            scores[method] = {
                "last": stages[-1],
                "average": float(np.mean(stages)),
                "per_stage": stages,
                "matrix": [[60.0 + s - t if t <= s else None for t in range(tasks)] for s in range(tasks)],
                "old": 40.0 + rank,
                "new": 80.0,
                "forgetting": 12.5,
                "ms_per_image": 0.5 + rank,
                "drift_cosine": 0.9 + rank / 100,
                "drift_cosines": rng.uniform(0.6, 1.0, size=20).tolist(),
                "confusion": (rng.randint(1, 50, size=(tasks, tasks)) + 100 * np.eye(tasks, dtype=int)).tolist(),
                "per_class": rng.uniform(0, 100, size=100).tolist(),
                "encoders": "abc",
                "path": rng.uniform(-1, 1, size=(2 + 3 * (method == "rose"), 2, 2)).tolist(),
                "origin": "paper",
            }
        order = np.random.RandomState(1993).permutation(100).tolist()
        results = {
            "schema": 1,
            "setting": {
                "dataset": "cifar100",
                "start": "cold",
                "tasks": tasks,
                "class_order": order,
                "task_classes": [order[t * per_task : (t + 1) * per_task] for t in range(tasks)],
                "class_names": [f"thing {c}" for c in range(100)],
                "label": "full",
                "config_name": "cifar100_cold",
                "seed": seed,
                **setting,
            },
            "scores": scores,
            "planes": {
                "base": {
                    "encoders": "abc",
                    "classes": [0, 5],
                    "true_means": [[0.5, 0.25], [-0.5, 0.0]],
                    "labels": [0, 0, 5, 99],
                    "points": rng.uniform(-1, 1, size=(4, 2)).tolist(),
                }
            }
            if tasks > 1
            else {},
            "train": {"base": {"seconds": 12.5, "images_per_second": 800.0, "compilations": 2}},
            "environment": {"jax": "1.2.3", "device": "cpu", "command": "python -m rose_jax.main --config X"},
        }
        if change:
            change(results)
        workdir = tmp_path / name
        workdir.mkdir()
        (workdir / "results.json").write_text(json.dumps(results))
        (workdir / "config.json").write_text(json.dumps({"seed": seed, "model": {"width": 16}}))
        return workdir

    return make
