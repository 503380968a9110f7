"""What test-time methods share that read images and change the network: the batch step, its order, its bookkeeping.

A method says how it updates on a batch and how it predicts. Here is decided which comes first, what is counted, and that
all of it ends with the stage: every stage begins with the network as it was trained.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.testtime import none
from rose_jax.testtime.reading import Reader, fit_scale
from rose_jax.train.losses import entropies, masked_mean
from rose_jax.types import (
    Adaptation,
    Array,
    Classifier,
    ClassMemory,
    End,
    Key,
    Model,
    Parts,
    PyTree,
    StageView,
    Start,
    StreamBatch,
)

OWN_WORK = ("forwards", "backwards", "steps", "broken_steps")


class Frame(NamedTuple):
    """What no batch changes."""

    scored: none.Scored
    scale: Array  # [], s of the logits
    model: Model  # as it was trained; of `extra` only what the method needs
    fitted: PyTree  # by the method's own `fit`


class Changing(NamedTuple):
    """What batches change."""

    lasting: PyTree  # of numbers; with testtime.persist its change goes on to the next stage
    passing: PyTree  # ends with the stage


class Shown(NamedTuple):
    """A batch as a method sees it."""

    raw: jax.Array  # uint8 [n, h, w, 3]
    images: jax.Array  # [n, h, w, 3], normalised
    valid: jax.Array  # bool [n]
    key: Key  # its own


class Prediction(NamedTuple):
    scores: jax.Array  # [n, C], the classifier's
    logits: jax.Array  # [n, C], what the entropy is of
    forwards: Array | int = 0  # passes per image that were made for the prediction alone


class Work(NamedTuple):
    """What an update took."""

    forwards: Array | int  # passes per image
    backwards: Array | int
    steps: Array | int  # 1, or 0 if the batch changed no weight
    extra: dict[str, Array] = {}  # noqa: RUF012  whole numbers [] of the method's own


class Update(Protocol):
    def __call__(
        self, own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        """What the batch changes. The prediction is that of a pass made anyway, before the step; None if there is none."""


class Predict(Protocol):
    def __call__(self, own: Changing, frame: Frame, shown: Shown, reader: Reader) -> Prediction: ...


class FitMethod(Protocol):
    def __call__(self, view: StageView, reader: Reader, key: Key) -> PyTree:
        """reader: of the prototypes and of s, by which the stage's logits are read."""


class Method(NamedTuple):
    official: str  # order of prediction in its authors' code: "before" or "after" the step
    lasting: Callable[[Model], PyTree]
    update: Update
    predict: Predict
    passing: Callable[[Frame, PyTree], PyTree] = lambda frame, kept: None
    fit: FitMethod = lambda view, reader, key: None
    extra: tuple[str, ...] = ()  # names of Work.extra
    keep: Callable[[Changing], PyTree] = lambda own: None  # for the next stage, also without testtime.persist
    blank: Callable[[], PyTree] = lambda: None  # shaped as what `keep` gives
    needs: frozenset[str] = frozenset()


class Adapting(NamedTuple):
    """The state of a stream."""

    frame: Frame
    own: Changing
    trained: PyTree  # `own.lasting` of the network as it was trained; None without testtime.persist
    key: Key
    batches: Array  # int32 []
    work: dict[str, Array]  # int32 [] each, so far
    last: dict[str, Array]  # [] each, of the last batch


def adaptation(parts: Parts, method: Method) -> Adaptation:
    options = parts.config.testtime
    order = method.official if options.order == "official" else options.order

    def fit(view: StageView, memory: ClassMemory, key: Key) -> PyTree:
        scale = 1.0
        if options.logits == "prototypes":
            scale = fit_scale(*view.train_features(view.stage), memory, options.largest_scale)
        head = view.snapshots[view.stage].head if options.logits == "head" else None
        reader = Reader(options.logits, memory, np.asarray(scale, np.float32), head)
        return {"scale": reader.scale, "own": method.fit(view, reader, key)}

    def init(start: Start, classifier: Classifier) -> Adapting:
        assert start.model is not None
        variables, head, extra = start.model
        model = Model(
            variables, head if options.logits == "head" else None, {name: extra[name] for name in method.needs}
        )
        frame = Frame(none.begin(start, classifier), start.fitted["scale"], model, start.fitted["own"])
        lasting = trained = method.lasting(model)
        if options.persist:
            lasting = jax.tree.map(jnp.add, trained, start.kept["changed"])
        own = Changing(lasting, method.passing(frame, start.kept["own"]))
        work = {name: jnp.int32(0) for name in (*OWN_WORK, *method.extra)}
        last = {"images": jnp.int32(0), "entropy": jnp.float32(0)} | {name: jnp.int32(0) for name in method.extra}
        return Adapting(frame, own, trained if options.persist else None, start.key, jnp.int32(0), work, last)

    def step(state: Adapting, batch: StreamBatch, classifier: Classifier) -> tuple[Adapting, jax.Array]:
        assert batch.images is not None
        frame, before = state.frame, state.own
        shown = Shown(
            batch.images,
            parts.normalise(batch.images),
            batch.valid,
            jax.random.fold_in(state.key, state.batches),
        )
        reader = Reader(
            options.logits, frame.scored.memory, frame.scale, frame.model.head, classifier, frame.scored.params
        )
        own, prediction, work = method.update(before, frame, shown, reader)
        # A step that is not finite would spoil the rest of the stage: it is left out, and counted.
        whole = is_finite(own.lasting)
        own = jax.tree.map(lambda new, old: jnp.where(whole, new, old), own, before)
        if order == "after" or prediction is None:
            prediction = method.predict(own if order == "after" else before, frame, shown, reader)
        images = shown.valid.sum(dtype=jnp.int32)
        done: dict[str, Array] = {
            "forwards": images * (work.forwards + prediction.forwards),
            "backwards": images * work.backwards,
            "steps": jnp.where(whole, work.steps, 0),
            "broken_steps": (~whole).astype(jnp.int32),
            **work.extra,
        }
        entropy = masked_mean(entropies(prediction.logits, reader.seen), shown.valid).astype(jnp.float32)
        state = state._replace(
            own=own,
            batches=state.batches + 1,
            work={name: total + done[name] for name, total in state.work.items()},
            last={"images": images, "entropy": entropy, **work.extra},
        )
        return state, prediction.scores

    def finish(state: Adapting, classifier: Classifier) -> End:
        """What persists is the change of all stages so far."""
        changed = jax.tree.map(jnp.subtract, state.own.lasting, state.trained) if options.persist else None
        end = none.finish(state.frame.scored, classifier)
        return end._replace(kept={"own": method.keep(state.own), "changed": changed})

    def blank(model: Model | None) -> PyTree:
        assert model is not None
        zeros = jax.tree.map(jnp.zeros_like, method.lasting(model)) if options.persist else None
        return {"own": method.blank(), "changed": zeros}

    def counts(state: Adapting) -> dict[str, Any]:
        return {name: int(value) for name, value in state.work.items()}

    return Adaptation(
        frozenset({"images"}),
        moves_prototypes=False,
        first_stage=0,
        init=init,
        step=step,
        finish=finish,
        counts=counts,
        fit=fit,
        trace=lambda state: state.last,
        blank=blank,
        needs=method.needs,
    )


def is_finite(tree: PyTree) -> jax.Array:
    """bool []: whether every number of the tree is finite."""
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(finite).all() if finite else jnp.array(True)
