"""The run: train each trajectory task by task, score its rows stage by stage, write results and report."""

import contextlib
import copy
import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rose_jax import events, report
from rose_jax.classifiers import CLASSIFIERS
from rose_jax.config import Config, from_json
from rose_jax.data import augment, measure, sources
from rose_jax.data.pipeline import Images
from rose_jax.data.scenario import make_scenario
from rose_jax.errors import UserError
from rose_jax.methods import Row, resolve
from rose_jax.models import make_encoder
from rose_jax.options import put
from rose_jax.run import accuracy
from rose_jax.run import results as results_lib
from rose_jax.run.features import Features
from rose_jax.run.scoring import Outcome, Scorer
from rose_jax.run.trajectory import Trajectory
from rose_jax.runtime import hosts
from rose_jax.runtime.files import refuse_address, write_json
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import Workdir
from rose_jax.testtime import ADAPTATIONS
from rose_jax.train.objectives import OBJECTIVES
from rose_jax.types import Parts

SCHEMA = 1


def run(
    config: Config,
    workdir: Path,
    *,
    layout: Layout | None = None,
    overwrite: bool = False,
    writers: tuple[str, ...] = (),
    profile_steps: int = 0,
    share: bool = False,
    mirror: str = "",
) -> dict[str, Any]:
    """Everything that `python -m rose_jax.main` does. Returns what it writes to results.json.

    share: what runs beside `workdir` have trained and scored with the same options is taken over.
    mirror: a URL below which a copy is kept, from which an empty workdir is filled.
    """
    refuse_address("--workdir", workdir)
    rows = resolve(config.methods)
    features = make_features(config, layout or Layout())
    images, parts, layout = features.images, features.parts, features.images.layout
    check_needs(rows, parts)
    if not overwrite:  # before the folder is claimed
        _check_results(workdir)
    identity = images.dataset.identity
    with Workdir(workdir, config, identity, overwrite, writers, profile_steps, share, mirror) as work:
        _check_results(work.path)
        groups = _by_objective(rows)
        scores: dict[str, dict[str, Any]] = {}
        training: dict[str, dict[str, Any]] = {}
        planes: dict[str, dict[str, Any]] = {}
        with contextlib.ExitStack() as stack:
            trajectories: dict[str, Trajectory] = {}
            for name in groups:
                trajectory = Trajectory(name, parts, features, work, trajectories)
                trajectories[name] = stack.enter_context(contextlib.closing(trajectory))
            work.need_space(sum(trajectory.bytes_to_come() for trajectory in trajectories.values()))
            for name, trajectory in trajectories.items():
                scorers = {
                    row: Scorer(row, choice, parts, layout, work.path / "scores")
                    for row, choice in groups[name].items()
                }
                outcomes = _follow(trajectory, scorers, work)
                found, planes[name] = results_lib.scores(outcomes, scorers, trajectory, work)
                scores |= found
                training[name] = work.training_summary(name) | {"compilations": len(trajectory.programs)}
        results = {
            "schema": SCHEMA,
            "setting": results_lib.setting(
                config, images, normalisation_of(images.dataset, config.data.normalisation)
            ),
            "scores": results_lib.earlier_scores(work, config, images.scenario.num_tasks)
            | {name: scores[name] for name in rows},
            "planes": results_lib.all_planes(work, planes),
            "train": results_lib.train_summary(training, work.path),
            "environment": results_lib.environment(layout),
        }
        if jax.process_index() == 0:
            write_json(work.path / "results.json", results)
            work.progress.stage("writing the report")
            written = report.write(work.path)
            print(written.text)
            print(f"Report: {written.html}")
            for figure in written.figures:
                print(f"Figure: {figure}")
        hosts.barrier("done")
    return results


def make_features(config: Config, layout: Layout, dataset: sources.Dataset | None = None) -> Features:
    """Data, scenario, encoder and transforms of a run: each is built here and nowhere else.

    dataset: in place of the config's, which is then not read.
    """
    options = config.data
    dataset = (dataset or load_data(config)).pooled(options.pool)
    scenario = make_scenario(config.scenario, dataset.num_classes, options.images_per_class)
    images = Images(dataset, scenario, layout, config.seed, options.decode_workers)
    normalise = augment.eval_transform(normalisation_of(dataset, options.normalisation))
    parts = Parts(
        config,
        make_encoder(config.model, dataset.image_size),
        scenario,
        images.image_shape,
        normalise,
        augment.train_transform(options.augment, normalise=normalise, pad=options.pad),
    )
    return Features(images, parts)


def load_data(config: Config) -> sources.Dataset:
    options = config.data
    return sources.load(
        options.dataset,
        options.dir or None,
        class_list=options.class_list or None,
        synthetic_if_missing=options.synthetic_if_missing,
        own_name=options.name,
        size=options.size,
    )


def normalisation_of(dataset: sources.Dataset, name: str) -> augment.Normalisation:
    """By name, or measured on the training images."""
    if name != "measured":
        return augment.NORMALISATION[name]
    found = dataset.moments if dataset.moments is not None else measure.moments(dataset.train, dataset.image_size)
    return augment.Normalisation(*(tuple(channels) for channels in found.tolist()))


def cache_compilations(workdir: Path | None = None) -> None:
    """What one start compiled, the next one reads; $JAX_COMPILATION_CACHE_DIR chooses another place.

    Small programs too, which jax by itself leaves out: of the demo's sixty all but a dozen.
    On accelerators it lies beside the runs, in .jax_cache: a training step takes minutes to compile, and a cloud's machine
    may come back with its data disk and an empty home. Call it after `hosts.start`.
    """
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path("~/.cache/rose_jax/jax").expanduser()
    if workdir is not None and jax.default_backend() != "cpu":
        folder = workdir.resolve().parent / ".jax_cache"
    jax.config.update("jax_compilation_cache_dir", str(folder))


class OpenRun:
    """A finished run, for studies that train nothing: its config, its data and its trajectories."""

    def __init__(self, config: Config, features: Features, work: Workdir):
        self.config, self.features, self.work = config, features, work
        self._trajectories: dict[str, Trajectory] = {}

    def objectives(self) -> list[str]:
        """Objectives that left snapshots here, whole or not."""
        return sorted(name for name in OBJECTIVES if self.work.trajectory_options(name) is not None)

    def trajectory(self, objective: str) -> Trajectory:
        """A UserError names the first snapshot that is missing or damaged."""
        if objective not in self._trajectories:
            options = self.work.trajectory_options(objective)
            if options is None:
                raise UserError(f"The run in {self.work.path} has no trajectory {objective!r}.")
            parts = self.features.parts._replace(config=with_options(self.config, options))
            self._trajectories[objective] = Trajectory(objective, parts, self.features, self.work)
        found = self._trajectories[objective]
        missing = [task for task in range(len(found)) if not found.has(task)]
        if missing:
            raise UserError(
                f"The run in {self.work.path} has no usable snapshot of task {missing[0] + 1} of {objective!r}: "
                "finish it first, and keep its checkpoints."
            )
        return found

    def close(self) -> None:
        for trajectory in self._trajectories.values():
            trajectory.close()


def read_config(workdir: Path) -> Config:
    path = workdir / "config.json"
    try:
        return from_json(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no run in {workdir}: {path.name} is missing.") from None
    except (OSError, ValueError, TypeError, AttributeError, UserError) as error:
        raise UserError(f"{path} is not the config of a run ({error}).") from None


def with_options(config: Config, options: dict[str, Any]) -> Config:
    """A copy with the options of an objective's encoders: a later command may have changed them for another one."""
    config = copy.deepcopy(config)
    for key, value in options.items():
        put(config, key, value)
    return config


@contextlib.contextmanager
def open_run(workdir: Path, *, data_dir: str | None = None, layout: Layout | None = None) -> Iterator[OpenRun]:
    """The run in `workdir`, locked against other processes; its data is read from `data_dir` if that is given."""
    config = read_config(Path(workdir))
    config.data.dir = data_dir or config.data.dir
    features = make_features(config, layout or Layout())
    with (
        Workdir(workdir, config, features.images.dataset.identity) as work,
        contextlib.closing(OpenRun(config, features, work)) as run,
    ):
        yield run


def _follow(trajectory: Trajectory, scorers: dict[str, Scorer], work: Workdir) -> dict[str, list[Outcome]]:
    """Task by task: train, then let every row stream over the stage's test images."""
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    images, labels = trajectory.images, trajectory.images.labels["test"]
    for task in range(len(trajectory)):
        trajectory.train(task)
        work.stop_if_preempted()  # the snapshot is on disk
        stream, encoders = images.stream(task), trajectory.digest(task)
        view = trajectory.view(task, stream, work.stop_if_preempted)
        work.take(filter(None, [scorer.path(task, encoders) for scorer in scorers.values()]))
        for name, scorer in scorers.items():
            outcomes[name].append(scorer.score(view, encoders))
            work.stop_if_preempted()  # the outcome is on disk
        accuracies = {
            name: np.nanmean(
                accuracy.class_accuracy(labels[stream], o[-1].predictions, images.scenario.num_classes)
            )
            for name, o in outcomes.items()
        }
        for name, o in outcomes.items():
            for told in events.told(o[-1].counts):
                logging.warning("%s task %d/%d  %s: %s.", trajectory.name, task + 1, len(trajectory), name, told)
        line = "  ".join(f"{name} {value:.1f}" for name, value in accuracies.items())
        work.progress.stage(f"{trajectory.name} task {task + 1}/{len(trajectory)}  accuracy: {line}")
    return outcomes


def _check_results(workdir: Path) -> None:
    path = Path(workdir).absolute()
    hosts.by_process_0(lambda: results_lib.check_earlier(path), f"the results in {path}")


def check_needs(rows: dict[str, Row], parts: Parts) -> None:
    """A test-time method may need what only some objectives train, a classifier what only some of those keep."""
    for name, row in rows.items():
        wanted = CLASSIFIERS[row.classifier].make(parts).needs - ADAPTATIONS[row.test_time].make(parts).offers
        if wanted:
            able = [other for other, plugin in ADAPTATIONS.items() if wanted <= plugin.make(parts).offers]
            raise UserError(
                f"Row {name!r}: its classifier needs a {', '.join(sorted(wanted))}, which {row.test_time!r} at test time "
                f"does not keep. Test-time methods that do: {', '.join(able)}. Or use --config.metric.source=evolved."
            )
        missing = ADAPTATIONS[row.test_time].make(parts).needs - OBJECTIVES[row.objective].provides
        if missing:
            able = [other for other, plugin in OBJECTIVES.items() if missing <= plugin.provides]
            raise UserError(
                f"Row {name!r}: {row.test_time!r} needs {', '.join(sorted(missing))}, which the objective "
                f"{row.objective!r} does not train. Objectives that do: {', '.join(able) or 'none'}."
            )


def _by_objective(rows: dict[str, Row]) -> dict[str, dict[str, Row]]:
    groups: dict[str, dict[str, Row]] = defaultdict(dict)
    for name, row in rows.items():
        groups[row.objective][name] = row
    return groups
