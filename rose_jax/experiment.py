"""The run: train each trajectory task by task, score its rows stage by stage, write results and report."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rose_jax import report
from rose_jax.config import Config, from_json
from rose_jax.data import augment, sources
from rose_jax.data.pipeline import Pipeline
from rose_jax.data.scenario import make_scenario
from rose_jax.errors import UserError
from rose_jax.methods import Row, resolve
from rose_jax.models import make_encoder
from rose_jax.run import accuracy as metrics
from rose_jax.run import results as results_lib
from rose_jax.run.scoring import Outcome, Scorer
from rose_jax.run.stage import Stage
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime import hosts
from rose_jax.runtime.files import write_json
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir
from rose_jax.train.objectives import OBJECTIVES, make_objective
from rose_jax.types import Objective

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
    pipeline = make_pipeline(config, layout or Layout())
    layout = pipeline.layout
    with Workdir(workdir, config, pipeline.dataset.identity, overwrite, writers, profile_steps) as work:
        groups = _by_objective(rows)
        trajectories = {
            name: Trajectory(name, _objective(name, config, pipeline), pipeline, work) for name in groups
        }
        scores: dict[str, dict[str, Any]] = {}
        training: dict[str, dict[str, Any]] = {}
        try:
            work.need_space(sum(trajectory.bytes_to_come() for trajectory in trajectories.values()))
            for name, trajectory in trajectories.items():
                scorers = {
                    row: Scorer(row, choice, config, layout, work.path / "scores")
                    for row, choice in groups[name].items()
                }
                outcomes = _follow(trajectory, scorers, pipeline, work)
                scores |= results_lib.scores(outcomes, scorers, trajectory, pipeline, work)
                compilations = trajectory.step._cache_size()
                training[name] = work.training_summary(name) | {"compilations": compilations}
        finally:
            for trajectory in trajectories.values():
                trajectory.close()
        results = {
            "schema": SCHEMA,
            "setting": results_lib.setting(config, pipeline),
            "scores": results_lib.earlier_scores(work.path, config) | {name: scores[name] for name in rows},
            "train": results_lib.train_summary(training, work.path),
            "environment": results_lib.environment(layout),
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


def make_pipeline(config: Config, layout: Layout) -> Pipeline:
    dataset = sources.load(
        config.data.dataset,
        config.data.dir or None,
        class_list=config.data.class_list or None,
        synthetic_if_missing=config.data.synthetic_if_missing,
    )
    scenario = make_scenario(config.scenario, dataset.num_classes, config.data.images_per_class)
    encoder = make_encoder(config.model)
    return Pipeline(config, dataset, scenario, encoder, layout)


def cache_compilations() -> None:
    """What one start compiled, the next one reads; $JAX_COMPILATION_CACHE_DIR chooses another place."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(Path("~/.cache/rose_jax/jax").expanduser()))


class OpenRun:
    """A finished run, for studies that train nothing: its config, its data and its trajectories."""

    def __init__(self, config: Config, pipeline: Pipeline, work: Workdir):
        self.config, self.pipeline, self.work = config, pipeline, work
        self._trajectories: dict[str, Trajectory] = {}

    def objectives(self) -> list[str]:
        """Objectives that left snapshots here, whole or not."""
        folder = self.work.path / "checkpoints"
        return sorted(path.name for path in folder.glob("*") if path.name in OBJECTIVES and any(path.iterdir()))

    def trajectory(self, objective: str) -> Trajectory:
        """A UserError names the first snapshot that is missing or damaged."""
        if objective not in self._trajectories:
            where = self.work.path / "checkpoints" / objective
            if not where.is_dir():
                raise UserError(f"The run in {self.work.path} has no trajectory {objective!r}.")
            trajectory = Trajectory(
                objective, _objective(objective, self.config, self.pipeline), self.pipeline, self.work
            )
            self._trajectories[objective] = trajectory
        found = self._trajectories[objective]
        missing = [task for task in range(len(found)) if not found.has(task)]
        if missing:
            raise UserError(
                f"The run in {self.work.path} has no usable snapshot of task {missing[0]} of {objective!r}: "
                "finish it first, and keep its checkpoints."
            )
        return found

    def close(self) -> None:
        for trajectory in self._trajectories.values():
            trajectory.close()


@contextlib.contextmanager
def open_run(workdir: Path, *, data_dir: str | None = None, layout: Layout | None = None) -> Iterator[OpenRun]:
    """The run in `workdir`, locked against other processes; its data is read from `data_dir` if that is given."""
    path = Path(workdir) / "config.json"
    try:
        config = from_json(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no run in {workdir}: {path.name} is missing.") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the config of a run ({error}).") from None
    config.data.dir = data_dir or config.data.dir
    pipeline = make_pipeline(config, layout or Layout())
    with (
        Workdir(workdir, config, pipeline.dataset.identity) as work,
        contextlib.closing(OpenRun(config, pipeline, work)) as run,
    ):
        yield run


def _follow(
    trajectory: Trajectory, scorers: dict[str, Scorer], pipeline: Pipeline, work: Workdir
) -> dict[str, list[Outcome]]:
    """Task by task: train, then let every row stream over the stage's test images."""
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for task in range(pipeline.scenario.num_tasks):
        trajectory.train(task)
        work.stop_if_preempted()  # the snapshot is on disk
        labels = pipeline.labels["test"]
        stream = pipeline.scenario.stream_indices(labels, task, pipeline.config.seed)
        view = Stage(trajectory.pipeline, task, trajectory, stream, work.stop_if_preempted)
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


def _objective(name: str, config: Config, pipeline: Pipeline) -> Objective:
    options = config.data
    return make_objective(
        name,
        config=config,
        encoder=pipeline.encoder,
        num_classes=pipeline.scenario.num_classes,
        image_shape=pipeline.image_shape,
        transform=augment.train_transform(options.augment, normalisation=options.normalisation, pad=options.pad),
    )


def _by_objective(rows: dict[str, Row]) -> dict[str, dict[str, Row]]:
    groups: dict[str, dict[str, Row]] = defaultdict(dict)
    for name, row in rows.items():
        groups[row.objective][name] = row
    return groups
