"""Stages of made-up features, and the evolved metric over them in float64 NumPy, written from its equations."""

import numpy as np
from support import FakeStage

from rose_jax.types import ClassMemory, Snapshot

SIZES, C, D, N, IMAGES = (3, 2, 2), 8, 6, 150, 12  # a class that never comes; the stream is no multiple of a batch


class View(FakeStage):
    """Stage t. `bases` [d, d] per encoder: the same images seen in another basis of feature space."""

    def __init__(self, stage, seed=0, bases=None, images=IMAGES, dim=D):
        super().__init__(stage)
        self.dim = dim
        self.bases = bases or [np.eye(dim)] * len(SIZES)
        centres = np.random.default_rng(seed).normal(size=(C, dim)) * 2
        stretch = np.linspace(0.3, 2, dim)
        rng = np.random.default_rng(100 * seed + stage)
        self.drifts = [
            np.eye(dim) + 0.3 * np.random.default_rng(50 + k).normal(size=(dim, dim)) for k in range(stage + 1)
        ]
        seen = sum(SIZES[: stage + 1])
        labels = rng.integers(0, seen, N + stage)
        first = centres[labels] + rng.normal(size=(len(labels), dim)) * stretch
        self.stream = {k: self._under(first, k, rng) for k in range(stage + 1)}
        fresh = np.arange(sum(SIZES[:stage]), seen)
        self.labels = np.repeat(fresh, images)
        own = centres[self.labels] + rng.normal(size=(len(self.labels), dim)) * stretch
        self.own, self.own_before = (self._under(own, k, rng) for k in (stage, max(stage - 1, 0)))
        self.snapshots = [self._snapshot(k, seed) for k in range(stage + 1)]

    def _under(self, features, k, rng):
        for drift in self.drifts[1 : k + 1]:
            features = features @ drift + 0.05 * rng.normal(size=features.shape)
        return ((features + 1.5) @ self.bases[k]).astype(np.float32)

    def _snapshot(self, k, seed):
        if k == self.stage:
            own, labels = self.own, self.labels
        else:
            view = View(k, seed, self.bases, dim=self.dim)
            own, labels = view.own, view.labels
        origin = np.full(C, -1, np.int32)
        mean = np.zeros((C, self.dim), np.float32)
        for c in np.unique(labels):
            origin[c], mean[c] = k, own[labels == c].mean(0)
        noise = np.random.default_rng(60 + k).normal(size=(self.dim, self.dim))
        projector = self.drifts[k] + 0.05 * noise
        if k:
            projector = np.linalg.inv(self.bases[k - 1]) @ projector @ self.bases[k]
        return Snapshot({}, {}, projector.astype(np.float32), ClassMemory(mean, origin), {})

    def train_features(self, k):
        assert k in (self.stage, self.stage - 1)
        return self.own if k == self.stage else self.own_before, self.labels

    def test_features(self, k, every=1):
        return self.stream[k][::every]


class Blind(View):
    """For rows that have no business with D_t."""

    def train_features(self, k):
        raise AssertionError("a row that does not whiten must not ask for these")


class Row:
    """A row's state from stage to stage: prototypes, Sigma, how many classes it stands for."""

    def __init__(self, options, prior=64):
        self.options, self.prior = options, prior
        self.table, self.sigma, self.each, self.classes = {}, np.zeros((D, D)), {}, 0

    def begin(self, view):
        self.view, self.old = view, dict(self.table)
        memory = view.snapshots[view.stage].memory
        self.table |= {c: memory.mean[c].astype(float) for c in np.flatnonzero(memory.origin == view.stage)}
        self.new = {c: np.cov(view.own[view.labels == c].astype(float).T) for c in np.unique(view.labels)}
        self.errors = []  # (weight, z_old, z_new)
        if self.options.error != "none" and view.stage:
            self.errors = [(self.prior / len(view.own), view.own_before.astype(float), view.own.astype(float))]

    def move(self, w):
        """Prototypes and Sigma_t(W), with what has been seen of the drift so far."""
        self.table |= {c: p @ w for c, p in self.old.items()}
        error = sum(weight * (b - a @ w).T @ (b - a @ w) for weight, a, b in self.errors)
        error = error / max(sum(weight * len(a) for weight, a, _ in self.errors), 1)
        carried = w.T @ self.sigma @ w + error
        k, n = self.classes, len(self.new)
        self.moved = (k * carried + n * np.mean(list(self.new.values()), 0)) / (k + n)
        if self.options.source == "newest":
            self.moved = np.mean(list(self.new.values()), 0)
        self.moved_each = {c: w.T @ own @ w + error for c, own in self.each.items()} | self.new

    def measure(self):
        self.center = np.mean(list(self.table.values()), 0)
        weight, ridge = self.options.per_class_weight, self.options.ridge
        mixed = {c: (1 - weight) * self.moved + weight * own for c, own in self.moved_each.items()}
        self.transforms = {c: whitening(sigma, ridge) for c, sigma in mixed.items()}

    def scores(self, z):
        """[n, C], in each class's own metric."""
        found = np.full((len(z), C), -np.inf)
        for c, p in self.table.items():
            found[:, c] = scores(z, p[None], self.center, self.transforms[c], self.options.kind)[:, 0]
            if self.options.kind == "lda" and self.options.per_class_weight:
                found[:, c] += np.linalg.slogdet(self.transforms[c])[1]
        return found

    def finish(self):
        self.sigma, self.each, self.classes = self.moved, self.moved_each, self.classes + len(self.new)


def still(row, view, w):
    """A stage of a row that has moved its prototypes by w before the stream."""
    row.begin(view)
    row.move(w)
    row.measure()
    found = row.scores(view.stream[view.stage])
    row.finish()
    return found


def evolving(row, view, pseudo, part, batch=1):
    """Alg. 2 with a metric that is taken anew now and then; scores after every `batch` images.

    Now and then: at a multiple of `part` images, when `refresh` and a quarter of all have come since the last time.
    """
    row.begin(view)
    refresh, since = row.options.refresh, 0
    w = view.snapshots[view.stage].projector.astype(float)
    q_old, q_new = list(pseudo), list(pseudo @ w)
    row.move(w)
    row.measure()
    pairs = [x.astype(float) for x in (view.stream[view.stage - 1], view.stream[view.stage])]
    found = []
    for i, (a, b) in enumerate(zip(*pairs, strict=True)):
        if refresh and i % part == 0 and since >= max(refresh, i // 4):
            row.move(w)
            row.measure()
            since = 0
        since += 1
        q_old, q_new = [*q_old[1:], a], [*q_new[1:], b]
        w = np.linalg.lstsq(np.array(q_old), np.array(q_new), rcond=None)[0]
        row.table |= {c: p @ w for c, p in row.old.items()}
        if row.options.error == "stream":
            row.errors.append((1.0, a[None], b[None]))
        if (i + 1) % batch == 0 or i + 1 == len(pairs[1]):
            found.append(row.scores(pairs[1][len(found) * batch : i + 1]))
    row.move(w)
    row.finish()
    return np.concatenate(found)


def whitening(covariance, ridge):
    dim = len(covariance)
    values, vectors = np.linalg.eigh(covariance + ridge * np.trace(covariance) / dim * np.eye(dim))
    return vectors @ np.diag(values**-0.5) @ vectors.T


def scores(z, table, center, transform, kind="cosine"):
    """[n, classes] of z [n, d] against the rows of the table."""
    z, table = (np.asarray(x, float) - center for x in (z, table))
    z, table = z @ transform, table @ transform
    if kind == "lda":
        return -0.5 * np.square(z[:, None] - table[None]).sum(-1)
    return z @ table.T / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(table, axis=1)
