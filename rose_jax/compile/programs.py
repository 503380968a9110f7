"""The programs of a run, ready to be lowered for described devices: made by what makes them in a run, fed with shapes."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export as jax_export
from jax.export import Exported
from jax.stages import Lowered, Wrapped

from rose_jax.compile.blank import BlankStage
from rose_jax.config import Config
from rose_jax.data import synthetic
from rose_jax.data.pipeline import TrainingBatches
from rose_jax.data.sources import KNOWN
from rose_jax.experiment import check_needs, load_data, make_features
from rose_jax.methods import resolve
from rose_jax.run.features import Features
from rose_jax.run.scoring import Scorer
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.target import Target, tracing_for
from rose_jax.testtime.stream import StreamResult
from rose_jax.train.loop import calls, make_task, total_steps
from rose_jax.train.objectives import OBJECTIVES, make_objective
from rose_jax.train.schedule import task_schedule
from rose_jax.train.step import make_begin, make_step
from rose_jax.types import Snapshot, Task


class Program(NamedTuple):
    name: str
    function: Wrapped
    arguments: tuple[Any, ...]
    target: Target
    unit: str  # what its cost is of: a "step", or an "image"
    units: int  # of them in what is counted: a loop with a traced bound counts once
    runs: int = 0  # steps that a whole run takes of it

    def lower(self) -> Lowered:
        with tracing_for(*self.target):
            return self.function.lower(*self.arguments)

    def export(self, platforms: Sequence[str]) -> Exported:
        """Lowered for several platforms at once, none of which needs to be there."""
        with tracing_for(*self.target):
            return jax_export.export(self.function, platforms=platforms)(*self.arguments)


def programs_of(config: Config, layout: Layout, platform: str) -> Iterator[Program]:
    """Of all rows of the config: both steps of each objective, feature extraction, each row's streams."""
    described = config.data.dataset in KNOWN and any(KNOWN[config.data.dataset].per_class)
    dataset = synthetic.outline(config.data.dataset) if described else load_data(config)
    features = make_features(config, layout, dataset)
    rows = resolve(config.methods)
    check_needs(rows, features.parts)

    target = Target(platform, layout.num_devices)
    made: dict[str, _Trained] = {}
    for objective in dict.fromkeys(row.objective for row in rows.values()):
        for name in _with_source(objective, features):
            if name not in made:
                made[name] = _Trained(name, features, made)
                yield from made[name].steps(target)
    first = next(iter(made.values())).snapshots[0]
    yield from _encoders(features, first, target)
    for name, row in rows.items():
        scorer = Scorer(name, row, features.parts, layout, None)
        yield from _streams(scorer, features, made[row.objective].snapshots, target)


class _Trained:
    """What an objective's first two tasks begin with and leave behind, without training; and its steps."""

    def __init__(self, name: str, features: Features, others: dict[str, "_Trained"]):
        self.name, self.features = name, features
        images = features.images
        self.objective = make_objective(name, features.parts)
        self.batches = TrainingBatches(images, self.objective.train or features.parts.config.train)
        self.step = make_step(self.objective, images.layout)
        here = Layout(jax.local_devices(backend="cpu")[:1])
        begin = make_begin(self.objective)
        self.starts: list[tuple[Any, Snapshot | None]] = []
        self.snapshots: list[Snapshot] = []
        for task in range(min(2, images.scenario.num_tasks)):
            prev = self.snapshots[-1] if task else None
            if task == 0 and _source(name, features) is not None:
                assert self.objective.adopt is not None
                self.snapshots.append(self.objective.adopt(others[OBJECTIVES[name].first_from].snapshots[0]))
                self.starts.append((None, None))
                continue
            traced = self._task(task, here)
            state = begin(prev, traced)
            self.starts.append((state, prev))
            view = BlankStage(features, task, self.snapshots)
            self.snapshots.append(self.objective.finish(state.trainable, state.kept, prev, view, traced))

    def steps(self, target: Target) -> Iterator[Program]:
        layout = self.features.images.layout
        every = [total_steps(self.batches, task) for task in range(self.features.images.scenario.num_tasks)]
        for task, (state, prev) in enumerate(self.starts):
            if state is None or not every[task]:  # another objective's, or the encoder is frozen
                continue
            _, _, arguments = next(calls(self.batches, task, 0, self.batches.options.steps_per_call))
            placed = layout.replicate((state, prev))
            given = (*placed, *arguments, self._task(task, layout))
            named = f"{self.name}: {'later tasks' if task else 'first task'}"
            yield Program(named, self.step, given, target, "step", 1, sum(every[1:]) if task else every[0])

    def _task(self, task: int, layout: Layout) -> Task:
        decay = task_schedule(self.batches.options, task).weight_decay
        return make_task(self.features.images, decay, task, layout)


def _source(name: str, features: Features) -> str | None:
    """The objective whose first task this one takes over."""
    adopts = make_objective(name, features.parts).adopt is not None
    return (OBJECTIVES[name].first_from or None) if adopts else None


def _with_source(name: str, features: Features) -> list[str]:
    source = _source(name, features)
    return [*([] if source is None else _with_source(source, features)), name]


def _encoders(features: Features, snapshot: Snapshot, target: Target) -> Iterator[Program]:
    layout, size = features.images.layout, features.batch_size
    variables = layout.replicate(snapshot.variables)
    for split in ("train", "test"):
        images, index, _ = next(features.images.evaluated(split, np.arange(size), size))
        given = (variables, images, index)
        yield Program(f"encode {split}", features.encoding, given, target, "image", layout.padded(size))


def _streams(scorer: Scorer, features: Features, snapshots: list[Snapshot], target: Target) -> Iterator[Program]:
    """One program, or two where the method begins at the second stage."""
    seen: set[str] = set()
    for stage in range(len(snapshots)):
        view: Any = BlankStage(features, stage, snapshots)
        state, unmoved = scorer.begin(view)
        if scorer.program_name(stage) not in seen:
            seen.add(scorer.program_name(stage))
            batch, _ = next(scorer.calls(view))
            given = (features.images.layout.replicate(state), batch)
            named = f"{scorer.name}: {'stream' if scorer.program_name(stage) == 'moving' else 'first stage'}"
            yield Program(named, scorer.stream(stage), given, target, "image", math.prod(batch.valid.shape))
        nothing = StreamResult(state, np.empty(0, np.int32), 0.0, {}, np.empty(0, np.float32))
        scorer.restart(scorer.end(view, nothing, unmoved))
