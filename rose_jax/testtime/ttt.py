"""TTT (Sun et al., ICML 2020), batch-wise and online: a step on the rotations of the batch, by trunk and rotation branch.

Running statistics are frozen (the code's fix_bn), and the network's own last stage takes no part in the step.
"""

import jax

from rose_jax.testtime.adapting import Changing, Frame, Method, Prediction, Shown, Work, adaptation
from rose_jax.testtime.batch_norm import read_batch
from rose_jax.testtime.reading import Reader
from rose_jax.train.auxiliary import ROTATION, rotation_loss, turned
from rose_jax.train.replay import own_transform
from rose_jax.types import Adaptation, Model, Parts, PyTree


def make(parts: Parts) -> Adaptation:
    options = parts.config.ttt
    transform = own_transform(parts, options.augment, parts.config.data.pad).transform
    passes = 4 if options.turns == "all" else 1

    def lasting(model: Model) -> PyTree:
        own = {"encoder": model.variables["params"]}
        return own | {"head": model.extra[ROTATION]["head"]} if options.train_branch else own

    def update(
        own: Changing, frame: Frame, shown: Shown, reader: Reader
    ) -> tuple[Changing, Prediction | None, Work]:
        augment_key, turn_key = jax.random.split(shown.key)
        batch = turned(turn_key, transform(augment_key, shown.raw), shown.valid, options.turns)

        def loss(trained: PyTree) -> jax.Array:
            head = trained.get("head", frame.model.extra[ROTATION]["head"])
            stats = frame.model.extra[ROTATION]["stats"]
            return rotation_loss(parts.encoder, head, stats, network(trained, frame), batch, "running")[0]

        grads = jax.grad(loss)(own.lasting)
        after = jax.tree.map(lambda weight, gradient: weight - options.lr * gradient, own.lasting, grads)
        return own._replace(lasting=after), None, Work(passes, passes, 1)

    def predict(own: Changing, frame: Frame, shown: Shown, reader: Reader) -> Prediction:
        return read_batch(parts.encoder, network(own.lasting, frame), shown, reader, norm="running")

    def network(trained: PyTree, frame: Frame) -> PyTree:
        return frame.model.variables | {"params": trained["encoder"]}

    return adaptation(parts, Method("after", lasting, update, predict, needs=frozenset({ROTATION})))
