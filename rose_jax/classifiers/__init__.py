"""How a feature becomes a score per class: one file per classifier, one line here."""

from rose_jax.classifiers import fc, head, mahalanobis, ncm, ridge, svm, whitened
from rose_jax.types import Classifier, Plugin

CLASSIFIERS: dict[str, Plugin[Classifier]] = {
    "ncm": Plugin(ncm.make, ("test.distance",)),
    "head": Plugin(head.make),
    "ridge": Plugin(ridge.make, ("dpcr",)),
    "whitened": Plugin(whitened.make, ("metric",)),
    "mahalanobis": Plugin(mahalanobis.make, ("fecam",)),
    "mahalanobis_common": Plugin(mahalanobis.make_common, ("fecam",)),
    "svm": Plugin(svm.make, ("fetril.nearest", "fetril.svm_c", "fetril.svm_tol")),
    "fc": Plugin(fc.make, ("fetril.fc_nearest", "fetril.fc_batch_size", "fetril.fc", "train.momentum")),
}
