"""FeTrIL: one linear support vector machine per class against all others, on L2-normalised (pseudo-)features.

Fitted anew at every stage by scikit-learn, on the host. With one class there is nothing to tell apart: its machine stays
zero, and every image is of that class.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rose_jax.models.heads import head_logits, normalize
from rose_jax.statistics.translation import features_of_all_classes
from rose_jax.types import Classifier, ClassMemory, Parts, PyTree, StageView


def make(parts: Parts) -> Classifier:
    options = parts.config.fetril

    def fit(previous: PyTree | None, memory: ClassMemory, view: StageView) -> PyTree:
        from sklearn.svm import LinearSVC  # slow, and other rows do not need it

        features, labels = features_of_all_classes(memory, view, options.nearest)
        features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        weight, bias = np.zeros(np.shape(memory.mean)), np.zeros(len(memory.origin))
        classes = np.unique(labels)
        for c in classes if len(classes) > 1 else ():
            view.pause()
            # In the primal, as FeTrIL's code: there the seed decides nothing.
            machine = LinearSVC(C=options.svm_c, tol=options.svm_tol, dual=False, random_state=42)
            machine.fit(features, labels == c)
            weight[c], bias[c] = machine.coef_[0], machine.intercept_[0]
        return {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}

    def logits(params: PyTree, memory: ClassMemory, feature: jax.Array) -> jax.Array:
        """Margins."""
        margins = head_logits(params, normalize(feature))
        return jnp.where((memory.origin >= 0)[None, :], margins, -jnp.inf)

    return Classifier(fit, logits)
