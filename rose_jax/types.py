"""The values and plug-in signatures that the rooms exchange. Values hold arrays, plug-ins hold functions.

A plug-in of any axis is made by `make(parts)`. Types of its fields are call-Protocols: mypy checks every plug-in
against the names and types written here.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
import optax

from rose_jax.config import Config, TrainOptions

PyTree = Any
Key = jax.Array
Trainable = dict[str, PyTree]  # what an objective trains, by name
T = TypeVar("T")
Array = jax.Array | np.ndarray  # on the devices, or on the host


# The encoder and the images that it sees.


class EncoderInit(Protocol):
    def __call__(self, key: Key, image: jax.Array) -> PyTree:
        """image: [h, w, 3], for its shape. Returns variables: {"params", "batch_stats"}."""


class EncoderApply(Protocol):
    def __call__(
        self, variables: PyTree, images: jax.Array, *, norm: str = "running", mask: jax.Array | None = None
    ) -> tuple[dict[str, jax.Array], PyTree]:
        """images: [n, h, w, 3], normalised. Returns {"feature": [n, d], "layer3": [n, h', w', c]} and batch_stats.

        norm: "running" statistics (evaluation) or those of the "batch" (training), over the rows where mask [n].
        """


class ApplyTail(Protocol):
    def __call__(
        self, variables: PyTree, layer3: jax.Array, *, norm: str = "running", mask: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        """layer3: [n, h', w', c], as `EncoderApply` returns it. Returns features [n, d] and batch_stats."""


class Tail(NamedTuple):
    """What follows layer3. An auxiliary branch is a second one, with variables of its own."""

    layers: tuple[str, ...]  # their names at the top of params and of batch_stats
    apply: ApplyTail


class Encoder(NamedTuple):
    """An encoder as two pure functions; a frozen teacher is just another variables tree."""

    init: EncoderInit
    apply: EncoderApply
    feature_dim: int
    tail: Tail | None = None


class Augment(Protocol):
    def __call__(self, key: Key, images: jax.Array, /) -> jax.Array:
        """uint8 [n, h, w, 3] -> float32 [n, h, w, 3], augmented and normalised."""


class Normalise(Protocol):
    def __call__(self, images: jax.Array, /) -> jax.Array:
        """uint8 [n, h, w, 3] -> float32 [n, h, w, 3]."""


class TaskSplit(Protocol):
    """Which classes come when (data.scenario.Scenario). Task t owns the labels offset(t) .. offset(t) + sizes[t] - 1."""

    @property
    def num_classes(self) -> int: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    def offset(self, task: int) -> int: ...


class Parts(NamedTuple):
    """What a plug-in is made of. Built once for a run."""

    config: Config
    encoder: Encoder
    scenario: TaskSplit
    image_shape: tuple[int, int, int]
    normalise: Normalise
    transform: Augment  # of training images


# Values.


class Task(NamedTuple):
    """What distinguishes task t. All traced, so that every task after the first runs the same program."""

    number: jax.Array  # int32 [], t from 0
    offset: jax.Array  # int32 [], |C_1:t-1|, the first internal label of the task
    n_new: jax.Array  # int32 [], |C_t|
    weight_decay: jax.Array  # float32 []
    seed: Array = np.zeros((), np.uint32)  # [], the run's; traced as well, so that all seeds share their programs


class Batch(NamedTuple):
    """What an objective's `batch` makes of a batch of images; objectives may put more rows in than came."""

    images: jax.Array  # [n, h, w, 3], normalised
    labels: jax.Array  # [n], internal
    mask: jax.Array  # [n], False for padding
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


Prev = Snapshot | None  # of the task before; the first has none


class StageView(Protocol):
    """All a plug-in may see at stage t. It has no test labels."""

    stage: int
    notes: dict[str, Any]  # numbers that a compensation wants to see in results.json
    encoder: Encoder

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """Of tasks 0..t, read when they are asked for."""

    def pause(self) -> None:
        """To be called now and then in anything long that reads no batches; it may raise."""

    def train_batches(
        self, key: Key, epochs: int, transform: Augment | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[Array, Array, Array]]:
        """Images [n, h, w, 3] of D_t after `transform` (the setting's unless told), labels [n] and mask [n].

        batch_size: the objective's unless told; n is the next number that the devices divide.
        """

    def encode(self, variables: PyTree, images: Array) -> Array:
        """Features [n, d] of images as `train_batches` gives them, under running statistics."""

    def encode_train(self, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, d] of D_t without augmentation, and internal labels [n]."""

    def train_features(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The same under f_k, extracted once."""

    def test_features(self, k: int) -> np.ndarray:
        """f_k of the stage's test stream [n, d], extracted once for all rows."""


# Objective: what the encoder is trained on in task t.


class FeaturePair(NamedTuple):
    """The same images under the teacher and under the network that is trained."""

    old: jax.Array  # [n, d] under f_{t-1}
    new: jax.Array  # [n, d] under f_t
    mask: jax.Array  # [n]


class LossParts(NamedTuple):
    kept: PyTree  # batch_stats and whatever else goes from step to step without a gradient
    terms: dict[str, jax.Array]  # [], for the log
    pair: FeaturePair | None  # None in the first task, which has no teacher


LossResult = tuple[jax.Array, LossParts]  # the loss [], and the rest


class Begin(Protocol):
    def __call__(self, key: Key, prev: Prev, task: Task) -> tuple[Trainable, PyTree]:
        """What is trained and what is `kept`, at the start of a task."""


class MakeBatch(Protocol):
    def __call__(self, key: Key, images: jax.Array, labels: jax.Array, mask: jax.Array, task: Task) -> Batch:
        """images: uint8 [n, h, w, 3], labels, mask: [n]."""


class Loss(Protocol):
    def __call__(
        self, trainable: Trainable, kept: PyTree, prev: Prev, batch: Batch, task: Task, key: Key
    ) -> LossResult: ...


class Finish(Protocol):
    def __call__(
        self, trainable: Trainable, kept: PyTree, prev: Prev, view: StageView, task: Task
    ) -> Snapshot: ...


class MakeOptimizer(Protocol):
    def __call__(self, lr: jax.Array, task: Task, trainable: Trainable) -> optax.GradientTransformation:
        """Freezing a part of what is trainable is the optimizer's mask."""


class Adopt(Protocol):
    def __call__(self, snapshot: Snapshot, /) -> Snapshot:
        """What another objective's first task has left, as this one goes on from it."""


class Objective(NamedTuple):
    begin: Begin
    batch: MakeBatch
    loss: Loss
    finish: Finish
    optimizer: MakeOptimizer
    train: TrainOptions | None = None  # a schedule of its own; None is the setting's
    # If the registry names another objective whose first task is this one's as well (Plugin.first_from): how its snapshot
    # is taken over. None: as configured, this one trains a first task of its own.
    adopt: Adopt | None = lambda snapshot: snapshot


# Compensation: how old prototypes move at the end of task t, with only D_t at hand.


class Move(Protocol):
    def __call__(self, memory: ClassMemory, view: StageView, key: Key) -> tuple[ClassMemory, Array | None]:
        """The moved memory, and the drift map [d, d] if features around a prototype moved along with it.

        None: they did not, or all by the same vector, which leaves a covariance as it was.
        """


class StartMap(Protocol):
    def __call__(self, view: StageView) -> Array:
        """W0 [d, d], where a test-time evolution starts."""


class Compensation(NamedTuple):
    move: Move
    start: StartMap | None = None  # None: the trained projector


# Classifier: how a feature becomes a score per class.


class FitClassifier(Protocol):
    def __call__(self, previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        """The classifier's params at this stage; previous: what it kept of the stage before."""


class Logits(Protocol):
    def __call__(self, params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        """feature [n, d] -> scores [n, C], -inf for classes not seen."""


class FollowDrift(Protocol):
    def __call__(self, params: PyTree, memory: ClassMemory, drift_map: Array | None, pairs: PyTree) -> PyTree:
        """Params after the prototypes have moved to `memory` by the drift map.

        It starts from what `fit` gave, so that it may be called with one map after the other. pairs: moments of
        the pairs that an evolution has seen so far (statistics.covariance.PairMoments), or None.
        """


class ReadParams(Protocol):
    def __call__(self, params: PyTree) -> Any: ...


class Motion(NamedTuple):
    """What else of a classifier moves along with the prototypes."""

    follow: FollowDrift
    keep: ReadParams  # what of the params the next stage and a later reader need
    metric: ReadParams | None = None  # the evolution.Metric or QueueMetric in which an evolution scores by itself
    refresh: int = 0  # least number of images between two calls of `follow` in a stream; 0: at its start only
    reads_pairs: bool = False  # whether `follow` wants the moments of the pairs
    # (what `fit` gave, memory) -> memory: prototypes that a compensation has just moved by a linear map, kept to what
    # the classifier knows of each class
    confine: Callable[[PyTree, ClassMemory], ClassMemory] | None = None
    # (params, Metric) -> params: takes over the metric that an evolution has ended with
    learn: Callable[[PyTree, Any], PyTree] | None = None


class Classifier(NamedTuple):
    fit: FitClassifier
    logits: Logits
    # True: an evolution's own scores, after every image, are this classifier's: cosines, or what motion.metric
    # says. False: a stream is scored by `logits`, batch by batch.
    scored_by_evolution: bool = False
    motion: Motion | None = None
    needs: frozenset[str] = frozenset()  # what the test-time method must offer: {"queue"}


# Adaptation: what happens while unlabelled test images stream by.


class StreamBatch(NamedTuple):
    """A batch of the test stream. It has no labels; what a method does not read is None."""

    valid: jax.Array  # bool [n], False for padding
    enters: jax.Array  # bool [n], whether the image may take part in an evolution (budgeted evolution)
    z_old: jax.Array | None = None  # [n, d] under f_{t-1}; zeros where the image does not enter
    z_new: jax.Array | None = None  # [n, d] under f_t
    images: jax.Array | None = None  # uint8 [n, h, w, 3], split over the devices


class Model(NamedTuple):
    """The trained network of a stage, for methods that read images."""

    variables: PyTree
    head: PyTree
    extra: PyTree


class Start(NamedTuple):
    """All that a stream begins with: one traced pytree, of the same shape at every stage."""

    memory: ClassMemory
    stage: Array  # int32 []
    drift_map: Array | None  # [d, d]: the start W0 of an evolution, else what the compensation has moved by
    params: PyTree  # the classifier's
    key: Key
    model: Model | None = None  # None for methods that read features
    fitted: PyTree = None  # what `fit` made of D_t
    kept: PyTree = None  # what the previous stage's `finish` left; before that, what `blank` gives


class End(NamedTuple):
    """What a stream leaves behind."""

    memory: ClassMemory
    params: PyTree  # the classifier's
    kept: PyTree  # the method's own, for the next stage


class FitAdaptation(Protocol):
    def __call__(self, view: StageView, memory: ClassMemory, key: Key) -> PyTree:
        """What the method measures on D_t before the stream; memory: the prototypes that it begins with."""


class InitAdaptation(Protocol):
    def __call__(self, start: Start, classifier: Classifier) -> PyTree:
        """The state before the first image. All state is data: weights, moments, queues."""


class AdaptationStep(Protocol):
    def __call__(self, state: PyTree, batch: StreamBatch, classifier: Classifier) -> tuple[PyTree, jax.Array]:
        """The state after the batch, and scores [n, C]; a row of NaN is an image that could not be scored."""


class FinishAdaptation(Protocol):
    def __call__(self, state: PyTree, classifier: Classifier) -> End: ...


class CountEvents(Protocol):
    def __call__(self, state: PyTree) -> dict[str, Any]:
        """Plain numbers for results.json."""


class TraceBatch(Protocol):
    def __call__(self, state: PyTree) -> dict[str, Array]:
        """Numbers [] of the batch that has just passed: what shows later how the stream went."""


class PrototypesNow(Protocol):
    def __call__(self, state: PyTree) -> Array:
        """[C, d]: where the prototypes are after the images so far."""


class BlankKept(Protocol):
    def __call__(self, model: Model | None) -> PyTree:
        """Start.kept before the first stage."""


class Remark(Protocol):
    def __call__(self, dim: int) -> str | None:
        """What a reader of results with features of d dimensions must know."""


class Adaptation(NamedTuple):
    """There is no label in anything it is given."""

    reads: frozenset[str]  # of StreamBatch: {"z_new"}, {"z_old", "z_new"} or {"images"}
    moves_prototypes: bool  # True: it starts from unmoved ones; False: the compensation has moved them
    first_stage: int  # before it, images are scored as by `none`
    init: InitAdaptation
    step: AdaptationStep
    finish: FinishAdaptation
    counts: CountEvents = lambda state: {}
    fit: FitAdaptation = lambda view, memory, key: None
    trace: TraceBatch | None = None
    prototypes: PrototypesNow | None = None  # of methods that move them while images stream by
    blank: BlankKept = lambda model: None
    needs: frozenset[str] = frozenset()  # parts of Snapshot.extra it cannot do without
    offers: frozenset[str] = frozenset()  # what a classifier may need: {"queue"}
    note: Remark = lambda dim: None


class Plugin(NamedTuple, Generic[T]):
    """A line of an axis's registry."""

    make: Callable[[Parts], T]
    options: tuple[
        str, ...
    ] = ()  # sections or keys of the config that it reads: results are named by their values
    provides: frozenset[str] = frozenset()  # objectives: parts of Snapshot.extra that a test-time method may need
    # Objectives: the one whose first task this one takes over instead of training it once more. What that task depends
    # on is part of this one's `options`, too.
    first_from: str = ""
