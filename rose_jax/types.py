"""The values and plug-in signatures that the rooms exchange. Values hold arrays, plug-ins hold functions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

PyTree = Any
Array = Any  # jax.Array on the devices, np.ndarray on the host


class Task(NamedTuple):
    """What distinguishes task t. All traced, so that every task after the first runs the same program."""

    index: Array  # int32 [], t from 0
    offset: Array  # int32 [], |C_1:t-1|, the first internal label of the task
    n_new: Array  # int32 [], |C_t|
    weight_decay: Array  # float32 []


class Batch(NamedTuple):
    """What an objective's `batch` makes of a batch of images; objectives may put more rows in than came."""

    images: Array  # [n, h, w, 3], normalised
    labels: Array  # [n], internal
    mask: Array  # [n], False for padding
    extra: PyTree = None


class ClassMemory(NamedTuple):
    """One vector per class, of final size from the first task on. Each scored row carries its own."""

    mean: Array  # [C, d]
    origin: Array  # int32 [C], the task that made it, -1 for a class not seen yet


class Snapshot(NamedTuple):
    """All that task t leaves behind."""

    variables: PyTree  # of the encoder: params and batch_stats
    head: PyTree
    projector: Array  # [d, d], trained jointly: z_old @ projector ~ z_new
    # Means of the task's own classes under its own encoder (Eq. 2). An objective that moves prototypes itself
    # has the earlier classes here as well; rows take them only through the compensation `own`.
    memory: ClassMemory
    extra: PyTree  # the objective's own


class Objective(NamedTuple):
    """What the encoder is trained on in task t."""

    begin: Callable  # (key, prev | None, task) -> trainable, batch_stats
    batch: Callable  # (key, images uint8, labels, mask, task) -> Batch
    loss: Callable  # (trainable, batch_stats, prev | None, batch, task, key) -> loss, (batch_stats, terms)
    finish: Callable  # (trainable, batch_stats, prev | None, view, task) -> Snapshot
    optimizer: Callable  # (lr, task, trainable) -> optax transform; freezing is its mask
    train: Any = None  # config.Train: a schedule of its own; None is the setting's


class Compensation(NamedTuple):
    """How old prototypes move at the end of task t, with only D_t at hand."""

    # (memory, view, key) -> ClassMemory, drift map [d, d] | None. The map says how the features around a prototype
    # moved along with it; None: not at all, or all by the same vector, which leaves a covariance as it was.
    move: Callable
    start: Callable | None = None  # (view) -> W0 [d, d] for a test-time evolution; None: the trained projector


class StreamBatch(NamedTuple):
    """A batch of the test stream. It has no labels."""

    z_old: Array  # [n, d] under f_{t-1}
    z_new: Array  # [n, d] under f_t
    valid: Array  # bool [n], False for padding
    enters: Array  # bool [n], whether the image may take part in evolution (budgeted evolution)


class TestTime(NamedTuple):
    """What happens while unlabelled test images stream by. There is no label in anything it is given."""

    evolves: bool  # True: it moves the unmoved prototypes itself, from the second stage on
    # drift map: the start W0 of an evolution, else the one that the compensation has moved the memory by
    prepare: Callable  # (memory, stage, drift map | None, params, key, classifier) -> state
    step: Callable  # (state, StreamBatch, classifier) -> state, scores [n, C]
    carry: Callable  # (state, memory, classifier) -> ClassMemory, params that the next stage starts from
    report: Callable  # (state) -> dict of plain numbers for results.json
    note: Callable = lambda dim: None  # (feature dimension) -> what a reader of the results must know, or None


TestTime.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever pytest makes of its name


class Classifier(NamedTuple):
    """How a feature becomes a score per class."""

    fit: Callable  # (previous stage's params | None, memory, view) -> params
    logits: Callable  # (params, memory, feature [n, d]) -> [n, C], -inf for classes not seen
    # (params, memory moved by the drift map, drift map | None, PairMoments | None) -> params: what else moves with
    # prototypes. It starts from what `fit` gave, so that an evolution may call it with one map after the other.
    evolve: Callable = lambda params, memory, drift_map, pairs: params
    # (params) -> evolution.Metric | None: the metric in which evolving prototypes are compared with images, None
    # for the plain cosine. Where there is no such function a stream is scored by `logits`, batch by batch.
    metric: Callable | None = None
    refresh: int = 0  # least number of images between two calls of `evolve` in a stream; 0: at its start only
    reads_pairs: bool = False  # whether `evolve` wants the moments of the pairs that an evolution has seen so far
    keep: Callable = lambda params: params  # what of the params the next stage and a later reader need


class StageView(Protocol):
    """All a scored row may see at stage t. It has no test labels."""

    stage: int
    snapshots: Sequence[Snapshot]  # lazy, 0..t
    notes: dict[str, float]  # numbers that a compensation wants to see in results.json
    encoder: Any  # models.resnet.Encoder
    pause: Callable[[], None]  # to be called now and then in anything long that reads no batches; it may raise

    def train_batches(
        self, key: Array, epochs: int, transform: Callable | None = None
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Augmented images of D_t, labels and mask; `transform` (key, uint8) is the setting's unless told."""

    def encode(self, variables: PyTree, images: Array) -> Array:
        """Features [n, d] of images as `train_batches` gives them, under running statistics."""

    def encode_train(self, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Features of D_t under the test transform, and internal labels."""

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The same under f_k, extracted once."""

    def test_features(self, k: int) -> np.ndarray:
        """f_k of the stage's test stream, extracted once for all rows."""
