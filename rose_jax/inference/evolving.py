"""A trained row whose prototypes move while images stream by; its state can be saved and continued."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.errors import UserError
from rose_jax.evolution.threads import wait_with_one_blas_thread
from rose_jax.run.identity import scoring_digest
from rose_jax.run.scoring import Scorer
from rose_jax.runtime.files import read_arrays, write_arrays
from rose_jax.testtime.stream import Call, feature_calls, image_calls, make_stream

if TYPE_CHECKING:
    from rose_jax.inference.model import Model, Pictures, Prediction


class EvolvingModel:
    """The test stream of a stage, image after image as it was in the run: the same start, keys and classifier.

    The run's own stream, given in its order and in calls of config.test.batch_size images, gets the row's labels. For a
    row that updates after every image, other calls change nothing beyond rounding.
    """

    def __init__(self, model: "Model", state: Path | None = None):
        self.model, self.position = model, 0  # images that have come
        self._adaptation = model.scorer.adaptation(model.stage)
        if not self._adaptation.moves_prototypes and "images" not in self._adaptation.reads:
            first = model.scorer.moving.first_stage
            why = (
                f"begins at stage {first} (after task {first + 1})"
                if model.stage < first
                else "does not change while images stream by"
            )
            raise UserError(f"Nothing evolves: the row {model.row!r} {why}. Its predict() needs no evolve().")
        scorer = Scorer(model.row, model.scorer.row, model.parts, model.layout, None)
        scorer.restart(self._carried())
        self._state, _ = scorer.begin(model.view())
        self._stream = make_stream(self._adaptation, scorer.classifier, model.layout, with_scores=True)
        if state is not None:
            self._restore(state)
        self._state = model.layout.replicate(self._state)

    @property
    def prototypes(self) -> np.ndarray:
        """[classes seen, d], as they are now."""
        end = self._adaptation.finish(self._state, self.model.scorer.classifier)
        return np.asarray(end.memory.mean)[: len(self.model.class_names)]

    def predict(self, images: "Pictures") -> "Prediction":
        """Labels of these images, each after the update that it has taken part in."""
        scores = [np.empty((0, self.model.scenario.num_classes), np.float32)]
        pixels = self.model.read(images)
        for batch, count in self._calls(pixels):
            self._state, (_, found) = wait_with_one_blas_thread(self._stream, self._state, batch)
            scores.append(np.asarray(found).reshape(-1, found.shape[-1])[:count])
        self.position += len(pixels)
        return self.model.named(np.concatenate(scores))

    def save(self, path: str | Path) -> None:
        """All that the next images depend on; `model.evolve(path)` goes on from there."""
        leaves = {f"leaf/{i:04d}": _plain(leaf) for i, leaf in enumerate(jax.tree.leaves(self._state))}
        known = {"position": np.array(self.position), "of": np.array(json.dumps(self._identity()))}
        write_arrays(Path(path), known | leaves)

    def _restore(self, path: Path) -> None:
        saved = read_arrays(path)
        if saved is None or "of" not in saved:
            raise UserError(f"{path} is not a state that evolve() has saved, or it is damaged.")
        there, here = json.loads(str(saved["of"])), self._identity()
        if there != here:
            keys = [key for key in here if there.get(key) != here[key]]
            told = ", ".join(f"{key} {there.get(key)!r}, not {here[key]!r}" for key in keys)
            raise UserError(f"The state in {path} belongs to another model: {told}.")
        leaves, structure = jax.tree.flatten(self._state)
        values = [_like(leaf, saved[f"leaf/{i:04d}"]) for i, leaf in enumerate(leaves)]
        self._state, self.position = jax.tree.unflatten(structure, values), int(saved["position"])

    def _identity(self) -> dict[str, Any]:
        model = self.model
        options = scoring_digest(model.config, model.scorer.row)
        return {"row": model.row, "stage": model.stage, "options": options, "encoders": model.encoders}

    def _carried(self) -> Any:
        """What the row took into the stage."""
        stage = self.model.stage
        outcome = self.model.outcome(stage - 1) if stage else None
        if stage and outcome is None:
            raise UserError(
                f"The run in {self.model.workdir} has lost what the row {self.model.row!r} left after task {stage}: "
                "repeat its command, which scores what is missing."
            )
        return outcome

    def _calls(self, pixels: np.ndarray) -> Iterator[Call]:
        model, config = self.model, self.model.config
        if "images" in self._adaptation.reads:
            batches = model.batches(pixels, config.testtime.batch_size)
            yield from image_calls(((model.layout.split(batch), count) for batch, count in batches), model.layout)
            return
        every, size = config.evolution.evolve_every, config.test.batch_size
        entering = pixels[-self.position % every :: every]
        reads_old = "z_old" in self._adaptation.reads
        yield from feature_calls(
            model.encode(entering, model.stage - 1) if reads_old else None,
            model.encode(pixels),
            layout=model.layout,
            batch_size=_call_size(len(pixels), size, config.evolution.granularity),
            batches_per_call=1,
            evolve_every=every,
            position=self.position,
        )


def _call_size(images: int, most: int, granularity: int) -> int:
    """Few images are not padded to a whole batch: sizes are doubled from one update's up, and so few are compiled."""
    size = granularity
    while size < min(images, most):
        size *= 2
    return min(size, most)


def _plain(leaf: Any) -> np.ndarray:
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _like(leaf: Any, saved: np.ndarray) -> Any:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(saved))
    return saved
