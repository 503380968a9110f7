"""A trained run in use: `model = rose_jax.load(RUN)` encodes and labels new images.

Reading changes nothing in the run's folder and locks nothing: any number of processes may read it, also while a run
trains there, which they see up to the last stage that it has finished.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from rose_jax import experiment
from rose_jax.data import augment, crops, decode
from rose_jax.data.dataset import pooled
from rose_jax.data.scenario import Scenario
from rose_jax.errors import UserError
from rose_jax.evolution.core import predict
from rose_jax.inference.evolving import EvolvingModel
from rose_jax.methods import resolve
from rose_jax.models import make_encoder
from rose_jax.run.features import Features
from rose_jax.run.scoring import Outcome, Scorer
from rose_jax.run.stage import Stage
from rose_jax.run.trajectory import SavedSnapshots, snapshots_digest
from rose_jax.runtime.programs import for_convolutions
from rose_jax.runtime.sharding import Layout
from rose_jax.runtime.workdir import trained_options
from rose_jax.train.objectives import make_objective
from rose_jax.types import Parts, PyTree, Snapshot

Picture = str | Path | Image.Image
Pictures = np.ndarray | Sequence[Picture]  # uint8 [n, h, w, 3], or files


class Prediction(NamedTuple):
    labels: np.ndarray  # int32 [n], positions in Model.class_names; -1 where an image could not be scored
    scores: np.ndarray  # [n, classes seen]: what the row's classifier compares, for `rose` cosines
    names: list[str]  # [n], "" where an image could not be scored


class Model:
    """One row of a run at one stage: f_t, its classifier, and the prototypes that the run's own test stream left."""

    def __init__(
        self, workdir: Path, row: str, stage: int, data_dir: str | None = None, layout: Layout | None = None
    ):
        config, choice = experiment.read_config(workdir), resolve([row])[row]
        folder = workdir / "checkpoints" / choice.objective
        options = trained_options(folder)
        if options is None:
            raise UserError(f"The run in {workdir} has no encoders for the row {row!r} ({folder} holds none).")
        self.config = experiment.with_options(config, options)
        self.config.data.dir = data_dir or self.config.data.dir
        self.workdir, self.row, self.layout = workdir, row, layout or Layout()
        self._features: Features | None = None
        self.parts, self.names, self.streamed, self.normalisation = self._described()
        self.scorer = Scorer(row, choice, self.parts, self.layout, workdir / "scores")
        self.snapshots = SavedSnapshots(folder, self.scenario.num_tasks, self.layout.replicated)
        self.stage, self.encoders = self._found(folder, stage)
        outcome = self.outcome(self.stage)
        assert outcome is not None
        self._outcome = outcome
        # Compiled as the run compiles its encoders, so that both round alike.
        self._encode = jax.jit(
            self._forward, out_shardings=self.layout.replicated, compiler_options=for_convolutions()
        )
        self._logits = jax.jit(self.scorer.classifier.logits)

    @property
    def scenario(self) -> Scenario:
        assert isinstance(self.parts.scenario, Scenario)
        return self.parts.scenario

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the classes seen up to this stage, in the order in which they came: labels are positions in it."""
        return tuple(self.names[c] for c in self.scenario.class_order[: self.scenario.seen(self.stage)])

    @property
    def image_size(self) -> int:
        return self.parts.image_shape[0]

    @property
    def snapshot(self) -> Snapshot:
        return self.snapshots[self.stage]

    @property
    def prototypes(self) -> np.ndarray:
        """[classes seen, d], after the run's own test stream."""
        return np.asarray(self._outcome.memory.mean)[: len(self.class_names)]

    def encode(self, images: Pictures, stage: int | None = None) -> np.ndarray:
        """Features [n, d] under the encoder of this stage, or of another one."""
        variables = self.snapshots[self.stage if stage is None else stage].variables
        size, found = self.config.test.batch_size, [np.empty((0, self.parts.encoder.feature_dim), np.float32)]
        for batch, count in self.batches(self.read(images), size):
            found.append(np.asarray(self._encode(variables, self.layout.split(batch)))[:count])
        return np.concatenate(found)

    def predict(self, images: Pictures) -> Prediction:
        """The row's labels with its prototypes as they are; `evolve` moves them."""
        if "images" in self.scorer.adaptation(self.stage).reads:
            raise UserError(
                f"The row {self.row!r} changes the network while images stream by, so that it labels nothing without: use "
                "evolve(), or --evolve."
            )
        outcome = self._outcome
        return self.named(np.asarray(self._logits(outcome.params, outcome.memory, self.encode(images))))

    def evolve(self, state: str | Path | None = None) -> EvolvingModel:
        """The same row, whose prototypes move with every image: from the start of the stage, or a saved state on."""
        return EvolvingModel(self, Path(state) if state is not None else None)

    def read(self, images: Pictures) -> np.ndarray:
        """uint8 [n, S, S, 3], cropped as the run's own test images: from arrays, files or Pillow images."""
        if isinstance(images, np.ndarray):
            if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
                raise UserError(
                    f"Images are {images.dtype} {list(images.shape)}; they must be uint8 [n, h, w, 3], or a list of files."
                )
            if images.shape[1:] == self.parts.image_shape:
                return images
            images = [Image.fromarray(image) for image in images]
        if isinstance(images, (str, Path, Image.Image)):
            images = [images]
        cropped = [self._cropped(_opened(image)) for image in images]
        return np.stack(cropped) if cropped else np.empty((0, *self.parts.image_shape), np.uint8)

    def named(self, scores: np.ndarray) -> Prediction:
        seen = len(self.class_names)
        labels = np.asarray(predict(jnp.asarray(scores))) if len(scores) else np.empty(0, np.int32)
        return Prediction(labels, scores[:, :seen], [self.class_names[k] if k >= 0 else "" for k in labels])

    def batches(self, images: np.ndarray, size: int) -> Iterable[tuple[np.ndarray, int]]:
        """Batches of one size, which the devices divide, and how many images of each are no padding."""
        padded = self.layout.padded(size)
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            yield np.resize(batch, (padded, *batch.shape[1:])), len(batch)

    def outcome(self, stage: int) -> Outcome | None:
        """What the row left at a stage of the run."""
        return self.scorer.saved(stage, snapshots_digest(self.snapshots.folder, stage + 1))

    def view(self) -> "LazyStage":
        return LazyStage(self.stage, self.snapshots, self.parts, self._open_stage)

    def _forward(self, variables: PyTree, images: jax.Array) -> jax.Array:
        normalised = self.parts.normalise(self.layout.constrain(images))
        return self.parts.encoder.apply(variables, normalised)[0]["feature"]

    def _cropped(self, image: Image.Image) -> np.ndarray:
        if self.streamed:
            return crops.resize_and_center_crop(image, self.image_size)
        pool = self.config.data.pool
        square = crops.fit_square(image, self.image_size * pool)
        return pooled(square[None], pool)[0] if pool > 1 else square

    def _found(self, folder: Path, stage: int) -> tuple[int, str]:
        """The stage asked for, and the digest of the encoders up to it."""
        scored = [t for t in range(self.scenario.num_tasks) if self.outcome(t) is not None]
        if not scored:
            there = sorted({path.name.split("_stage_")[0].rsplit("_", 2)[0] for path in self._scores()})
            raise UserError(
                f"The run in {self.workdir} has not scored the row {self.row!r} with its present options (scored: "
                f"{', '.join(there) or 'none'}). To do so, repeat its command with --methods {self.row}."
            )
        if not -len(scored) <= stage < len(scored):
            raise UserError(
                f"There is no stage {stage}: the row {self.row!r} has 0 (after task 1) to {len(scored) - 1} (after task "
                f"{scored[-1] + 1})."
            )
        return scored[stage], snapshots_digest(folder, scored[stage] + 1)

    def _scores(self) -> list[Path]:
        return list((self.workdir / "scores").glob("*_stage_*.npz"))

    def _described(self) -> tuple[Parts, tuple[str, ...], bool, augment.Normalisation]:
        """Parts, class names, whether images are streamed, and the normalisation: without the data, if the run has ended."""
        try:
            setting = json.loads((self.workdir / "results.json").read_text())["setting"]
            names, of_images, order = setting["class_names"], setting["images"], setting["class_order"]
            sizes = [len(classes) for classes in setting["task_classes"]]
            normalisation = augment.Normalisation(tuple(of_images["mean"]), tuple(of_images["std"]))
        except (OSError, ValueError, KeyError, TypeError):  # a run under way, or of an earlier version
            features = self._opened_features()
            dataset = features.images.dataset
            normalisation = experiment.normalisation_of(dataset, self.config.data.normalisation)
            return features.parts, dataset.class_names, dataset.streamed, normalisation
        options, size = self.config.data, of_images["size"]
        normalise = augment.eval_transform(normalisation)
        parts = Parts(
            self.config,
            make_encoder(self.config.model, size),
            Scenario(np.asarray(order), tuple(sizes), options.images_per_class),
            (size, size, 3),
            normalise,
            augment.train_transform(options.augment, normalise=normalise, pad=options.pad),
        )
        return parts, tuple(names), of_images["streamed"], normalisation

    def _opened_features(self) -> Features:
        if self._features is None:
            self._features = experiment.make_features(self.config, self.layout)
        return self._features

    def _open_stage(self) -> Stage:
        train = make_objective(self.scorer.row.objective, self.parts).train or self.config.train
        return Stage(self._opened_features(), self.stage, self.snapshots, np.empty(0, int), train.batch_size)


class LazyStage:
    """types.StageView of a finished run: its data is read only if a plug-in asks for it, which `rose` does not."""

    def __init__(self, stage: int, snapshots: Sequence[Snapshot], parts: Parts, opened: Callable[[], Stage]):
        self.stage, self.snapshots, self.encoder = stage, snapshots, parts.encoder
        self.notes: dict[str, Any] = {}
        self._open = opened
        self._opened: Stage | None = None

    def pause(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if self._opened is None:
            self._opened = self._open()
        return getattr(self._opened, name)


def load(
    workdir: str | Path,
    row: str = "rose",
    stage: int = -1,
    *,
    data_dir: str | None = None,
    layout: Layout | None = None,
) -> Model:
    """The model that a run has trained.

    row: as in --methods; the run must have scored it. stage: 0 after the first task, -1 after the last one that is
    there. data_dir: where the run's data lies, which only some rows need, and only to evolve.
    """
    return Model(Path(workdir), row, stage, data_dir, layout)


def _opened(image: Picture) -> Image.Image:
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    try:
        return decode.open_upright(Path(image).read_bytes(), str(image))
    except OSError as error:
        raise UserError(f"{image} cannot be read: {error.strerror}.") from None
