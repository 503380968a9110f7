"""The run: train each trajectory task by task, score its rows stage by stage, write results and report."""

import datetime
import os
import platform
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rose_jax import hosts, metrics, report
from rose_jax.config import Config
from rose_jax.data import augment, sources
from rose_jax.data.pipeline import Pipeline
from rose_jax.data.scenario import make_scenario
from rose_jax.files import read_arrays, write_arrays, write_json
from rose_jax.methods import Row, resolve
from rose_jax.models.resnet import resnet18
from rose_jax.scoring import Outcome, Scorer
from rose_jax.sharding import Layout
from rose_jax.stage import Stage
from rose_jax.train.objectives import make_objective
from rose_jax.trajectory import Trajectory
from rose_jax.workdir import Workdir

SCHEMA = 1


def run(
    config: Config,
    workdir: Path,
    *,
    layout: Layout | None = None,
    overwrite: bool = False,
    writers: tuple[str, ...] = (),
    profile_steps: int = 0,
) -> dict[str, Any]:
    """Everything that `python -m rose_jax.main` does. Returns what it writes to results.json."""
    rows = resolve(config.methods)
    layout = layout or Layout()
    dataset = sources.load(
        config.data.dataset,
        config.data.dir or None,
        class_list=config.data.class_list or None,
        synthetic_if_missing=config.data.synthetic_if_missing,
    )
    scenario = make_scenario(config.scenario, dataset.num_classes)
    encoder = resnet18(config.model.width, config.model.stem, config.model.compute_dtype)
    pipeline = Pipeline(config, dataset, scenario, encoder, layout)
    with Workdir(workdir, config, overwrite, writers, profile_steps) as work:
        scores: dict[str, dict[str, Any]] = {}
        training: dict[str, dict[str, Any]] = {}
        for name, members in _by_objective(rows).items():
            objective = make_objective(
                name,
                config=config,
                encoder=encoder,
                num_classes=scenario.num_classes,
                image_shape=pipeline.image_shape,
                transform=augment.train_transform(
                    config.data.augment, normalisation=config.data.normalisation, pad=config.data.pad
                ),
            )
            trajectory = Trajectory(name, objective, pipeline, work)
            try:
                work.need_space(trajectory.bytes_to_come())
                outcomes = _follow(trajectory, members, pipeline, work)
                scores |= _score(outcomes, members, trajectory, pipeline, work)
            finally:
                trajectory.close()
            training[name] = work.training_summary(name) | {"compilations": trajectory.step._cache_size()}
        results = {
            "schema": SCHEMA,
            "setting": _setting(config, pipeline),
            "scores": {name: scores[name] for name in rows},
            "train": _train_summary(training),
            "environment": _environment(layout),
        }
        if jax.process_index() == 0:
            write_json(work.path / "results.json", results)
            written = report.write(work.path)
            print(written.text)
            print(f"Report: {written.html}")
            for figure in written.figures:
                print(f"Figure: {figure}")
        hosts.barrier("done")
    return results


def _follow(
    trajectory: Trajectory, rows: dict[str, Row], pipeline: Pipeline, work: Workdir
) -> dict[str, list[Outcome]]:
    """Task by task: train, then let every row stream over the stage's test images."""
    scorers = {
        name: Scorer(name, row, pipeline.config, pipeline.layout, work.path / "scores")
        for name, row in rows.items()
    }
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for task in range(pipeline.scenario.num_tasks):
        trajectory.train(task)
        labels = pipeline.labels["test"]
        stream = pipeline.scenario.stream_indices(labels, task, pipeline.config.seed)
        view = Stage(trajectory.pipeline, task, trajectory, stream)
        for name, scorer in scorers.items():
            outcomes[name].append(scorer.score(view))
            work.stop_if_preempted()  # the outcome is on disk
        accuracy = {
            name: np.nanmean(
                metrics.class_accuracy(labels[stream], o[-1].predictions, pipeline.scenario.num_classes)
            )
            for name, o in outcomes.items()
        }
        line = "  ".join(f"{name} {value:.1f}" for name, value in accuracy.items())
        work.progress.stage(f"{trajectory.name} task {task + 1}/{pipeline.scenario.num_tasks}  accuracy: {line}")
    return outcomes


def _score(outcomes, rows, trajectory, pipeline: Pipeline, work: Workdir) -> dict[str, dict[str, Any]]:
    config, scenario = pipeline.config, pipeline.scenario
    labels = pipeline.labels["test"]
    streams = [scenario.stream_indices(labels, task, config.seed) for task in range(scenario.num_tasks)]
    true_means = _true_means(trajectory, pipeline, work) if scenario.num_tasks > 1 else None
    scores = {}
    for name, stages in outcomes.items():
        score = metrics.summary(
            [labels[stream] for stream in streams],
            [stage.predictions for stage in stages],
            scenario.task_of_class(),
            config.scenario.start,
        )
        last = stages[-1]
        score["ms_per_image"] = 1e3 * last.seconds / len(last.predictions)
        score["counts"] = last.counts
        score["origin"] = rows[name].origin
        if true_means is not None:
            true_old, true_new = true_means
            old = slice(0, scenario.offset(scenario.num_tasks - 1))
            cosines = metrics.drift_cosines(
                np.asarray(last.memory.mean)[old], last.unmoved[old], true_new[old], true_old[old]
            )
            score["drift_cosines"] = cosines
            score["drift_cosine"] = float(np.mean(cosines)) if np.isfinite(cosines).all() else float("nan")
        scores[name] = score
    return scores


def _true_means(trajectory, pipeline: Pipeline, work: Workdir) -> tuple[np.ndarray, np.ndarray]:
    """[C, d] means of every class's training images under the last two encoders: for the metric only."""
    last = pipeline.scenario.num_tasks - 1
    path = work.path / "scores" / f"{trajectory.name}_true_means.npz"
    saved = read_arrays(path)
    if not hosts.agree(saved is not None) or saved is None:
        indices = np.flatnonzero(pipeline.labels["train"] < pipeline.scenario.offset(last))
        labels = pipeline.labels["train"][indices]
        saved = {}
        for key, task in (("old", last - 1), ("new", last)):
            features, _ = pipeline.encode(trajectory[task].variables, "train", indices)
            sums = np.zeros((pipeline.scenario.num_classes, features.shape[1]))
            np.add.at(sums, labels, features)
            counts = np.bincount(labels, minlength=pipeline.scenario.num_classes)
            saved[key] = sums / np.maximum(counts, 1)[:, None]
        if jax.process_index() == 0:
            write_arrays(path, saved)
    return saved["old"], saved["new"]


def _by_objective(rows: dict[str, Row]) -> dict[str, dict[str, Row]]:
    groups: dict[str, dict[str, Row]] = defaultdict(dict)
    for name, row in rows.items():
        groups[row.objective][name] = row
    return groups


def _train_summary(training: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Totals, as the contract has them, and each trajectory's own."""
    seconds = sum(t["seconds"] for t in training.values())
    images = sum(t["seconds"] * t["images_per_second"] for t in training.values())
    return {
        "seconds": round(seconds, 1),
        "images_per_second": round(images / max(seconds, 1e-9), 1),
        "compilations": sum(t["compilations"] for t in training.values()),
        "objectives": training,
    }


def _setting(config: Config, pipeline: Pipeline) -> dict[str, Any]:
    scenario = pipeline.scenario
    return {
        "dataset": config.data.dataset,
        "start": config.scenario.start,
        "tasks": config.scenario.tasks,
        "class_order": scenario.class_order.tolist(),
        "task_classes": [
            scenario.class_order[list(scenario.classes(t))].tolist() for t in range(scenario.num_tasks)
        ],
        "config_name": config.name,
        "label": config.preset,
        "note": config.note,
        "seed": config.seed,
    }


def _environment(layout: Layout) -> dict[str, Any]:
    import flax
    import jaxlib
    import optax

    return {
        "command": " ".join(["python -m rose_jax.main", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "device": layout.mesh.devices.flat[0].device_kind,
        "num_devices": layout.num_devices,
        "num_processes": jax.process_count(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
