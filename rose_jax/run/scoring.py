"""Scores one row over the stages of a trajectory. Each stage's outcome is a file; a rerun reads it back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Wrapped

from rose_jax.classifiers import CLASSIFIERS
from rose_jax.compensation import COMPENSATIONS
from rose_jax.config import get
from rose_jax.data.order import generator
from rose_jax.errors import UserError
from rose_jax.evolution.threads import wait_with_one_blas_thread
from rose_jax.methods import Row
from rose_jax.run.identity import scoring_digest
from rose_jax.run.stage import Stage
from rose_jax.runtime import hosts
from rose_jax.runtime.files import read_arrays, write_arrays
from rose_jax.runtime.memory import must_fit
from rose_jax.runtime.programs import Programs
from rose_jax.runtime.sharding import Layout
from rose_jax.testtime import ADAPTATIONS
from rose_jax.testtime.stream import Call, StreamResult, feature_calls, image_calls, make_stream, run_stream
from rose_jax.types import Adaptation, ClassMemory, Model, Parts, PyTree, StageView, Start


class Outcome(NamedTuple):
    """What a row leaves behind at a stage."""

    predictions: np.ndarray  # int32 [n], of the stage's stream
    unmoved: np.ndarray  # [C, d] the prototypes before the row moved them in this stage
    memory: ClassMemory  # what the next stage starts from
    params: dict[str, Any]  # the classifier's
    counts: dict[str, float]  # of the test-time method and the compensation
    seconds: float  # of the stream, forward passes included
    kept: tuple[Any, ...] = ()  # leaves of what the test-time method keeps for the next stage
    trace: dict[str, np.ndarray] = {}  # noqa: RUF012  [batches] each: how a stream of images went
    # [moments, C, d]: prototypes along the last stage's stream, where they move in it; else [0]
    path: np.ndarray = np.empty(0)


class Scorer:
    """One row of a table: its plug-ins, its compiled stream, its memory from stage to stage."""

    def __init__(self, name: str, row: Row, parts: Parts, layout: Layout, folder: Path | None):
        """folder: where outcomes are kept; None keeps none."""
        self.name, self.row, self.parts, self.layout, self.folder = name, row, parts, layout, folder
        self.compensation = COMPENSATIONS[row.compensation].make(parts)
        self.classifier = CLASSIFIERS[row.classifier].make(parts)
        self.still = ADAPTATIONS["none"].make(parts)
        self.moving = ADAPTATIONS[row.test_time].make(parts)
        self.programs = Programs(f"the test stream of {name}", convolves="images" in self.moving.reads)
        self.seed = parts.config.seed  # of pseudo-features and other draws
        self._last: Outcome | None = None

    def score(self, view: Stage, encoders: str = "") -> Outcome:
        """The outcome of stage view.stage; those of earlier stages must have been asked for before.

        encoders: the digest of the snapshots up to this stage, by which the outcome's file is named.
        """
        path, outcome = self.path(view.stage, encoders), self.saved(view.stage, encoders)
        if not hosts.agree(outcome is not None):
            with must_fit(f"The test stream of row {self.name!r}", self._size_keys()):
                outcome = self._run(view)
            if jax.process_count() > 1:  # CPUs of two kinds round differently
                outcome = _unpack(hosts.share(_pack(outcome)))
            if path and jax.process_index() == 0:
                for stale in path.parent.glob(path.name.replace(encoders, "*")):  # of encoders that are gone
                    stale.unlink(missing_ok=True)
                write_arrays(path, _pack(outcome))
        if outcome is None:
            raise UserError(f"{path} is there for process 0 only; the workdir must be shared.")
        self._last = outcome
        return outcome

    def path(self, stage: int, encoders: str) -> Path | None:
        """Of the outcome's file, whose name says all that it depends on."""
        options = scoring_digest(self.parts.config, self.row)
        return self.folder / f"{self.name}_{options}_{encoders}_stage_{stage:03d}.npz" if self.folder else None

    def restart(self, after: Outcome | None = None) -> None:
        """Forget the stages so far, or go on after an outcome of another row; what is compiled stays compiled."""
        self._last = after

    def adaptation(self, stage: int) -> Adaptation:
        return self.moving if stage >= self.moving.first_stage else self.still

    def batch_size(self, stage: int) -> int:
        """Test images that a stage's stream takes at once."""
        config = self.parts.config
        return (config.testtime if "images" in self.adaptation(stage).reads else config.test).batch_size

    def forward_seconds(self, view: Stage) -> float:
        """What of an outcome's time its cached features have taken."""
        reads, every = self.adaptation(view.stage).reads, self.parts.config.evolution.evolve_every
        new = view.test_seconds(view.stage) if "z_new" in reads else 0.0
        return new + (view.test_seconds(view.stage - 1, every) if "z_old" in reads else 0.0)

    def passes_per_image(self, outcome: Outcome, stage: int) -> tuple[float, float]:
        """Forward and backward passes that the stage's stream took for each image, old encoders included."""
        reads, every = self.adaptation(stage).reads, self.parts.config.evolution.evolve_every
        if "images" not in reads:
            return 1.0 + ("z_old" in reads) / every, 0.0
        images = max(len(outcome.predictions), 1)
        return outcome.counts["forwards"] / images, outcome.counts["backwards"] / images

    def begin(self, view: StageView) -> tuple[PyTree, np.ndarray]:
        """The state before the first image of a stage's stream, and the unmoved prototypes [C, d]."""
        stage, adaptation = view.stage, self.adaptation(view.stage)
        key = jax.random.key(int(generator("stream", self.seed, stage, 1).integers(2**31)))
        move_key, stream_key, fit_key = jax.random.split(key, 3)
        snapshot = view.snapshots[stage]
        memory = merge(self._last.memory if self._last else None, snapshot.memory, stage)
        unmoved, drift_map = memory.mean, None
        view.notes.clear()
        if adaptation.moves_prototypes:
            drift_map = self.compensation.start(view) if self.compensation.start else snapshot.projector
        elif stage > 0:
            memory, drift_map = self.compensation.move(memory, view, move_key)
        # Set-up, stream and end run under the same number of BLAS threads, for that number changes rounding.
        fitted = self._last.params if self._last else None
        params = wait_with_one_blas_thread(self.classifier.fit, fitted, memory, view)
        motion = self.classifier.motion
        if motion and motion.confine and drift_map is not None and not adaptation.moves_prototypes:
            memory = motion.confine(params, memory)
        model = Model(snapshot.variables, snapshot.head, snapshot.extra) if "images" in adaptation.reads else None
        start = Start(
            memory,
            jnp.int32(stage),
            drift_map,
            params,
            stream_key,
            model,
            adaptation.fit(view, memory, fit_key),
            self._kept(adaptation, model),
        )
        init = jax.jit(adaptation.init, static_argnums=1)
        return wait_with_one_blas_thread(init, start, self.classifier), np.asarray(unmoved)

    def _run(self, view: Stage) -> Outcome:
        state, unmoved = self.begin(view)
        return self.end(view, self._stream(state, view), unmoved)

    def end(self, view: Stage, result: StreamResult, unmoved: np.ndarray) -> Outcome:
        """What a stage's stream leaves behind; unmoved: as `begin` gave it."""
        adaptation, motion = self.adaptation(view.stage), self.classifier.motion
        finish = jax.jit(adaptation.finish, static_argnums=1)
        end = wait_with_one_blas_thread(finish, result.state, self.classifier)
        counts = adaptation.counts(result.state) | view.notes
        unscored = int((result.predictions < 0).sum()) - counts.get("bad_rows", 0)
        return Outcome(
            result.predictions,
            unmoved,
            jax.device_get(end.memory),
            jax.device_get(motion.keep(end.params) if motion else end.params),
            counts | ({"unscored": unscored} if unscored > 0 else {}),
            result.seconds + self.forward_seconds(view),
            tuple(jax.device_get(jax.tree.leaves(end.kept))),
            result.trace,
            result.path,
        )

    def stream(self, stage: int) -> Wrapped:
        """The program that every call of a stage's stream runs."""
        return make_stream(self.adaptation(stage), self.classifier, self.layout)

    def calls(self, view: Stage) -> Iterator[Call]:
        """The batches of a stage's stream, as `stream` takes them."""
        reads = self.adaptation(view.stage).reads
        options, every = self.parts.config.test, self.parts.config.evolution.evolve_every
        if "images" in reads:
            return image_calls(view.test_images(self.batch_size(view.stage)), self.layout)
        return feature_calls(
            view.test_features(view.stage - 1, every) if "z_old" in reads else None,
            view.test_features(view.stage),
            layout=self.layout,
            batch_size=self.batch_size(view.stage),
            batches_per_call=options.batches_per_call,
            evolve_every=every,
        )

    def program_name(self, stage: int) -> str:
        return "moving" if self.adaptation(stage) is self.moving else "still"

    def _stream(self, state: PyTree, view: Stage) -> StreamResult:
        last = view.stage == len(self.parts.scenario.sizes) - 1
        return run_stream(
            self.stream(view.stage),
            state,
            self.calls(view),
            layout=self.layout,
            programs=self.programs,
            name=self.program_name(view.stage),
            pause=view.pause,
            trace=self.adaptation(view.stage).trace,
            prototypes=self.adaptation(view.stage).prototypes if last else None,
        )

    def _size_keys(self) -> str:
        """The options that decide how much memory a stream needs, with their values."""
        keys = ["testtime.batch_size"] if "images" in self.moving.reads else ["test.batch_size"]
        keys += ["evolution.capacity"] if "z_old" in self.moving.reads else []
        return " or ".join(f"config.{key} (now {get(self.parts.config, key)})" for key in keys)

    def _kept(self, adaptation: Adaptation, model: Model | None) -> PyTree:
        blank = adaptation.blank(model)
        if self._last is None or not self._last.kept:
            return blank
        return jax.tree.unflatten(jax.tree.structure(blank), self._last.kept)

    def saved(self, stage: int, encoders: str) -> Outcome | None:
        """What `score` has left of a stage, if it is there."""
        path = self.path(stage, encoders)
        arrays = read_arrays(path) if path else None
        return _unpack(arrays) if arrays else None


def merge(old: ClassMemory | None, new: ClassMemory, stage: int) -> ClassMemory:
    """The carried memory with the classes that the newest task brought.

    Of earlier classes a snapshot may hold prototypes that its objective has moved; a row's own memory of them is
    not touched (see compensation/own.py).
    """
    if old is None:
        return new
    fresh = new.origin == stage
    mean = jnp.where(fresh[:, None], new.mean, old.mean)
    return ClassMemory(mean, jnp.where(fresh, new.origin, old.origin))


def _pack(outcome: Outcome) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "predictions": outcome.predictions,
        "unmoved": outcome.unmoved,
        "mean": np.asarray(outcome.memory.mean),
        "origin": np.asarray(outcome.memory.origin),
        "seconds": np.float64(outcome.seconds),
    }
    if outcome.path.size:
        arrays["path"] = outcome.path
    arrays |= {f"params/{name}": np.asarray(value) for name, value in outcome.params.items()}
    arrays |= {f"kept/{index:04d}": np.asarray(value) for index, value in enumerate(outcome.kept)}
    arrays |= {f"trace/{name}": value for name, value in outcome.trace.items()}
    return arrays | {f"counts/{name}": np.asarray(value) for name, value in outcome.counts.items()}


def _unpack(arrays: dict[str, np.ndarray]) -> Outcome:
    def group(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}

    return Outcome(
        arrays["predictions"],
        arrays["unmoved"],
        ClassMemory(arrays["mean"], arrays["origin"]),
        group("params/"),
        {name: value.item() for name, value in group("counts/").items()},
        float(arrays["seconds"]),
        tuple(value for _, value in sorted(group("kept/").items())),
        group("trace/"),
        arrays.get("path", np.empty(0)),
    )
