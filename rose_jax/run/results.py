"""What stands in results.json: scores from outcomes, the setting, what training took, the environment."""

import datetime
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rose_jax.config import Config
from rose_jax.data.augment import Normalisation
from rose_jax.data.pipeline import Images
from rose_jax.errors import UserError
from rose_jax.methods import find
from rose_jax.run import accuracy as metrics
from rose_jax.run import plane as planes
from rose_jax.run.identity import scoring_digest, trajectory_options
from rose_jax.run.scoring import Outcome, Scorer
from rose_jax.run.trajectory import Trajectory, snapshots_digest
from rose_jax.runtime import code, hosts
from rose_jax.runtime.agreement import differing_options
from rose_jax.runtime.files import read_arrays, write_arrays
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir


def scores(
    outcomes: dict[str, list[Outcome]], scorers: dict[str, Scorer], trajectory: Trajectory, work: Workdir
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Per row: accuracies, drift, cost, and where its prototypes went in the plane of the last stage; and that plane.

    With a single task no class is old: the plane is {}.
    """
    config, images = trajectory.parts.config, trajectory.images
    scenario, labels = images.scenario, images.labels["test"]
    streams = [images.stream(task) for task in range(scenario.num_tasks)]
    truth = true_means(trajectory, work) if scenario.num_tasks > 1 else None
    encoders = trajectory.digest(scenario.num_tasks - 1)
    plane = planes.lay(trajectory) if truth else None
    found = {}
    for name, stages in outcomes.items():
        score = metrics.summary(
            [labels[stream] for stream in streams],
            [stage.predictions for stage in stages],
            scenario.task_of_class(),
            config.scenario.start,
        )
        last = stages[-1]
        score["ms_per_image"] = 1e3 * last.seconds / len(last.predictions)
        score["forwards"], score["backwards"] = scorers[name].passes_per_image(last, scenario.num_tasks - 1)
        score["counts"] = _counts(stages)
        score["options"], score["encoders"] = scoring_digest(config, scorers[name].row), encoders
        note = scorers[name].moving.note(last.unmoved.shape[1])
        if note:
            score["note"] = note
        score["origin"] = scorers[name].row.origin
        if truth is not None and plane is not None:
            true_old, true_new = truth
            score["path"] = plane.place(planes.path(last)[:, plane.classes])
            old = slice(0, scenario.offset(scenario.num_tasks - 1))
            cosines = metrics.drift_cosines(
                np.asarray(last.memory.mean)[old], last.unmoved[old], true_new[old], true_old[old]
            )
            score["drift_cosines"] = cosines
            # NaN where a prototype did not move at all, which has no direction
            known = cosines[np.isfinite(cosines)]
            score["drift_cosine"] = float(known.mean()) if known.size else float("nan")
            if 0 < known.size < cosines.size:
                score["counts"]["classes_without_a_drift_cosine"] = int(cosines.size - known.size)
        found[name] = score
    return found, planes.described(plane, truth[1], encoders) if truth and plane else {}


def earlier_scores(work: Workdir, config: Config, stages: int) -> dict[str, dict[str, Any]]:
    """Rows that an earlier command scored on this workdir stay in the table, unless what they depend on has changed."""
    kept = {}
    for name, score in _earlier(work.path).get("scores", {}).items():
        row = find(name)
        if row is None or score.get("options") != scoring_digest(config, row):
            continue
        trained_with = work.trajectory_options(row.objective)
        if trained_with is None:  # the encoders are gone, and nothing contradicts their scores
            kept[name] = score
        elif not differing_options(trained_with, trajectory_options(config, row.objective)):
            folder = work.trajectory_folder(row.objective)
            if score.get("encoders") == snapshots_digest(folder, stages):
                kept[name] = score
    return kept


def all_planes(work: Workdir, planes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of this command's trajectories, and of others that an earlier command scored on this workdir."""
    return _earlier(work.path).get("planes", {}) | planes


def check_earlier(workdir: Path) -> None:
    """Refuses a results.json that could not be added to: before a run, not after it."""
    _earlier(workdir)


def train_summary(training: dict[str, dict[str, Any]], workdir: Path) -> dict[str, Any]:
    """Totals, as the contract has them, and each trajectory's own, those of earlier commands included."""
    earlier = _earlier(workdir).get("train", {}).get("objectives", {})
    for name, summary in training.items():  # a run that only scored has compiled no training step
        summary["compilations"] = max(summary["compilations"], earlier.get(name, {}).get("compilations", 0))
    training = earlier | training
    seconds = sum(t["seconds"] for t in training.values())
    images = sum(t["seconds"] * t["images_per_second"] for t in training.values())
    return {
        "seconds": round(seconds, 1),
        "images_per_second": round(images / max(seconds, 1e-9), 1),
        "compilations": sum(t["compilations"] for t in training.values()),
        "objectives": training,
    }


def setting(config: Config, images: Images, normalisation: Normalisation) -> dict[str, Any]:
    scenario, dataset = images.scenario, images.dataset
    return {
        "dataset": dataset.name,
        "start": config.scenario.start,
        "tasks": scenario.num_tasks - (config.scenario.start == "warm"),
        "split": "custom" if config.scenario.task_sizes or not scenario.equal else "equal",
        "data": dataset.identity,
        # What labels a new image without the data: see model.py.
        "class_names": list(dataset.class_names),
        "images": {"size": dataset.image_size, "streamed": dataset.streamed, **normalisation._asdict()},
        "class_order": scenario.class_order.tolist(),
        "task_classes": [
            scenario.class_order[list(scenario.classes(t))].tolist() for t in range(scenario.num_tasks)
        ],
        "config_name": config.name,
        "label": config.preset,
        "note": config.note,
        "seed": config.seed,
    }


def environment(layout: Layout) -> dict[str, Any]:
    return {
        "command": " ".join(["python -m rose_jax.main", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "rose_jax": code.version(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")},
        "device": layout.mesh.devices.flat[0].device_kind,
        "num_devices": layout.num_devices,
        "num_processes": jax.process_count(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
    }


def _processor() -> str:
    """Its name where Linux tells it, for CPUs of two kinds round differently; else its architecture alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name") and ":" in line]
    return ", ".join([*names[:1], platform.machine()])


def true_means(trajectory: Trajectory, work: Workdir) -> tuple[np.ndarray, np.ndarray]:
    """[C, d] means of every class's training images under the last two encoders: for the drift cosine only."""
    images, last = trajectory.images, len(trajectory) - 1
    path = work.path / "scores" / f"{trajectory.name}_true_means_{trajectory.digest(last)}.npz"
    work.take([path])
    saved = read_arrays(path)
    if not hosts.agree(saved is not None):
        indices = np.concatenate([images.of_task(task) for task in range(last)])
        labels, classes = images.labels["train"][indices], images.scenario.num_classes
        saved = {}
        told = _Passes(
            f"{trajectory.name} true class means", 2 * len(indices), trajectory.features.batch_size, work
        )
        for key, task in (("old", last - 1), ("new", last)):
            variables = trajectory[task].variables
            features, _ = trajectory.features.encode(variables, "train", indices, told)
            sums = np.zeros((classes, features.shape[1]))
            np.add.at(sums, labels, features)
            counts = np.bincount(labels, minlength=classes)
            saved[key] = sums / np.maximum(counts, 1)[:, None]
        told.show(told.images)
        if jax.process_index() == 0:
            write_arrays(path, saved)
    if saved is None:
        raise UserError(f"{path} is there for process 0 only; the workdir must be shared.")
    return saved["old"], saved["new"]


class _Passes:
    """Shows forward passes that belong to no stage, and lets them be stopped: called before each batch."""

    def __init__(self, title: str, images: int, batch_size: int, work: Workdir):
        self.title, self.images, self.batch_size, self.work = title, images, batch_size, work
        self.begun, self.last = 0, time.perf_counter()
        work.progress.stage(f"{title}: {images} forward passes, to measure the drift")

    def __call__(self) -> None:
        self.work.stop_if_preempted()
        if self.begun:
            self.show(min(self.begun, self.images))
        self.begun += self.batch_size

    def show(self, done: int) -> None:
        now = time.perf_counter()
        self.work.progress.count(self.title, done, self.images, now - self.last, "images")
        self.last = now


def _counts(stages: list[Outcome]) -> dict[str, float]:
    """Whole numbers add up over the stages; of other figures the last stage's stands."""
    total: dict[str, float] = {}
    for stage in stages:
        for name, value in stage.counts.items():
            total[name] = total.get(name, 0) + value if isinstance(value, int) else value
    return total


def _earlier(workdir: Path) -> dict[str, Any]:
    """What an earlier command wrote; {} if there was none."""
    path = workdir / "results.json"
    try:
        results = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        results = error
    parts = [results.get(name, {}) for name in ("scores", "train")] if isinstance(results, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        said = results if isinstance(results, Exception) else "it has no objects scores and train"
        raise UserError(
            f"{path} is not the results of a run ({said}). Move it away and run the same command again: nothing is "
            "trained twice."
        )
    return results
