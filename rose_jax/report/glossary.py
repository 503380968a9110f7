"""What the words of a report mean, in a line each."""

from collections.abc import Iterable

from rose_jax.methods import split
from rose_jax.report.paper import canonical

MEASURES = {
    "last": "accuracy over all classes after the last task; every accuracy is in per cent and a mean over classes",
    "average": "mean of the accuracies after each task",
    "old, new": "last accuracy on the classes of the last task (new) and of all before (old); after a warm start the first "
    "task is old and all others new",
    "forgetting": "how far the accuracy on an earlier task has fallen below its best, mean over tasks; lower is better",
    "drift cos": "cosine between a row's move of an old prototype and the true move of its class's mean feature, mean over "
    "old classes; 1 is right, - is a row that moves none",
    "ms/image": "time per test image, forward passes and evolution included",
    "prototype": "the mean feature of a class when its task was learned",
    "cold, warm start": "all tasks alike; a large first task, then small ones",
    "bold": "the best number of its column, whichever row it is in (on each class: of its line)",
}

ROWS = {
    "base": "RoSE's encoder, prototypes never moved",
    "projector": "prototypes moved once per task by the linear map trained along with the encoder",
    "rose": "that map solved for again after every test image",
    "gd": "that map changed by a step of gradient descent after every test image",
    "gd_queue": "gd on the whole of RoSE's queue",
    "gd_oracle": "gradient descent on the whole test stream before it is labelled",
    "batch_norm": "projector, with the statistics of each test batch in the network's norms",
    "tent": "norms of the network adapted to test batches, so that predictions become certain (entropy)",
    "eata": "tent on images that are certain and new to it, held near the trained weights",
    "cotta": "the whole network taught by its own running average",
    "ttt": "the encoder trained on the rotations of each test batch before it is labelled",
    "ttt++": "the encoder trained to contrast views of test images, features held near those of training",
    "lwf": "distilled encoder with its linear head",
    "lwf_ncm": "distilled encoder, nearest prototype, prototypes never moved",
}
CLASSIFIERS = {
    "whitened": "images and prototypes compared in a metric that evolves with the map",
    "ridge": "classified by DPCR's ridge regression",
}


def of(methods: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The measures, and those of the rows that need more than their paper's name."""
    found = dict(MEASURES)
    for method in methods:
        plain, classifier = split(canonical(method))
        if plain in ROWS:
            found.setdefault(plain, ROWS[plain])
        elif "+" in plain:
            found.setdefault("X+Y", "the encoders of row X with what row Y does while test images stream by")
        if classifier:
            found.setdefault(f"..._{classifier}", CLASSIFIERS[classifier])
    return tuple(found.items())
