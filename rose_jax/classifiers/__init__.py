"""How a feature becomes a score per class: one file per classifier, one line here."""

from rose_jax.classifiers import head, ncm, ridge, whitened
from rose_jax.types import Classifier, Plugin

CLASSIFIERS: dict[str, Plugin[Classifier]] = {
    "ncm": Plugin(ncm.make, ("test.distance",)),
    "head": Plugin(head.make),
    "ridge": Plugin(ridge.make, ("dpcr",)),
    "whitened": Plugin(whitened.make, ("metric",)),
}
