"""Scores one row over the stages of a trajectory. Each stage's outcome is a file; a rerun reads it back."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.classifiers.ncm import CLASSIFIERS
from rose_jax.compensation import COMPENSATIONS
from rose_jax.config import Config
from rose_jax.data.order import generator
from rose_jax.errors import UserError
from rose_jax.evolution.threads import wait_with_one_blas_thread
from rose_jax.methods import Row
from rose_jax.run.identity import scoring_digest
from rose_jax.run.stage import Stage
from rose_jax.runtime import hosts
from rose_jax.runtime.files import read_arrays, write_arrays
from rose_jax.runtime.sharding import Layout
from rose_jax.testtime import TEST_TIMES
from rose_jax.testtime.stream import make_stream, run_stream
from rose_jax.types import ClassMemory


class Outcome(NamedTuple):
    """What a row leaves behind at a stage."""

    predictions: np.ndarray  # int32 [n], of the stage's stream
    unmoved: np.ndarray  # [C, d] the prototypes before the row moved them in this stage
    memory: ClassMemory  # what the next stage starts from
    params: dict[str, Any]  # the classifier's
    counts: dict[str, float]  # of the test-time method and the compensation
    seconds: float  # of the stream, forward passes included


class Scorer:
    """One row of a table: its plug-ins, its compiled stream, its memory from stage to stage."""

    def __init__(self, name: str, row: Row, config: Config, layout: Layout, folder: Path | None):
        self.name, self.row, self.config, self.layout, self.folder = name, row, config, layout, folder
        self.compensation = COMPENSATIONS[row.compensation](config)
        self.classifier = CLASSIFIERS[row.classifier](config)
        # The first stage has no old encoder, so a row that evolves starts evolving at the second.
        self.still = TEST_TIMES["none"](config)
        self.moving = TEST_TIMES[row.test_time](config)
        self._streams: dict[bool, Any] = {}
        self._ran: set[bool] = set()
        self._last: Outcome | None = None

    def score(self, view: Stage) -> Outcome:
        """The outcome of stage view.stage; those of earlier stages must have been asked for before."""
        outcome = self._read(view.stage)
        if not hosts.agree(outcome is not None):
            outcome = self._run(view)
            if jax.process_count() > 1:  # CPUs of two kinds round differently
                outcome = _unpack(hosts.share(_pack(outcome)))
            self._write(view.stage, outcome)
        if outcome is None:
            raise UserError(f"{self._path(view.stage)} is there for process 0 only; the workdir must be shared.")
        self._last = outcome
        return outcome

    def restart(self, after: Outcome | None = None) -> None:
        """Forget the stages so far, or go on after an outcome of another row; what is compiled stays compiled."""
        self._last = after

    def _run(self, view: Stage) -> Outcome:
        stage, options = view.stage, self.config.evolution
        key = jax.random.key(int(generator("stream", self.config.seed, stage, 1).integers(2**31)))
        move_key, stream_key = jax.random.split(key)
        snapshot = view.snapshots[stage]
        memory = merge(self._last.memory if self._last else None, snapshot.memory, stage)
        unmoved = memory.mean
        evolving = self.moving.evolves and stage > 0
        test_time = self.moving if evolving or not self.moving.evolves else self.still
        drift_map = None
        view.notes.clear()
        if evolving:
            drift_map = self.compensation.start(view) if self.compensation.start else snapshot.projector
        elif stage > 0:
            memory, drift_map = self.compensation.move(memory, view, move_key)
        # Under the same BLAS threads as the stream, and waited for: a limit that falls in the middle changes bits.
        fitted = self._last.params if self._last else None
        params = wait_with_one_blas_thread(self.classifier.fit, fitted, memory, view)
        z_new = view.test_features(stage)
        z_old = view.test_features(stage - 1) if evolving else z_new
        prepare = jax.jit(test_time.prepare, static_argnums=5)
        state = wait_with_one_blas_thread(
            prepare, memory, jnp.int32(stage), drift_map, params, stream_key, self.classifier
        )
        result = run_stream(
            self._stream(test_time),
            state,
            z_old,
            z_new,
            layout=self.layout,
            batch_size=self.config.test.batch_size,
            batches_per_call=self.config.test.batches_per_call,
            evolve_every=options.evolve_every,
            compiled=test_time.evolves in self._ran,
        )
        self._ran.add(test_time.evolves)
        seconds = result.seconds + view.test_seconds(stage)
        if evolving:
            seconds += view.test_seconds(stage - 1) / options.evolve_every
        carry = jax.jit(test_time.carry, static_argnums=2)
        memory, params = wait_with_one_blas_thread(carry, result.state, memory, self.classifier)
        return Outcome(
            result.predictions,
            np.asarray(unmoved),
            jax.device_get(memory),
            jax.device_get(self.classifier.keep(params)),
            test_time.report(result.state) | view.notes,
            seconds,
        )

    def _stream(self, test_time):
        if test_time.evolves not in self._streams:
            self._streams[test_time.evolves] = make_stream(test_time, self.classifier)
        return self._streams[test_time.evolves]

    def _path(self, stage: int) -> Path | None:
        digest = scoring_digest(self.config, self.row)
        return self.folder / f"{self.name}_{digest}_stage_{stage:03d}.npz" if self.folder else None

    def _read(self, stage: int) -> Outcome | None:
        path = self._path(stage)
        arrays = read_arrays(path) if path else None
        return _unpack(arrays) if arrays else None

    def _write(self, stage: int, outcome: Outcome) -> None:
        path = self._path(stage)
        if path and jax.process_index() == 0:
            write_arrays(path, _pack(outcome))


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
    arrays |= {f"params/{name}": np.asarray(value) for name, value in outcome.params.items()}
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
    )
