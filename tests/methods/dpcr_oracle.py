"""Stages of made-up features, and DPCR over them in float64 NumPy, written from its formulas."""

import numpy as np
from support import FakeStage

from rose_jax.types import ClassMemory, Snapshot

SIZES, C, D, N = (3, 2, 2), 8, 6, 70  # a class that never comes; the stream is no multiple of a batch


class View(FakeStage):
    """Stage t. f_k is x -> tanh(x A_k), so that no linear map is the drift."""

    def __init__(self, stage, per_class=11, dead=0, seed=0):
        centres = np.random.default_rng(seed).normal(size=(C, D))
        rng = np.random.default_rng(100 * seed + stage)
        seen, before = sum(SIZES[: stage + 1]), sum(SIZES[:stage])
        labels = np.repeat(np.arange(before, seen), per_class)
        images = self.draw(rng, centres, labels)
        self.stream = self.draw(rng, centres, rng.integers(0, seen, N + stage))
        self.dead = dead
        super().__init__(
            stage,
            snapshots=[self.snapshot(k, per_class, dead, seed) for k in range(stage)],
            images=images,
            labels=labels,
            augment=lambda images: 1.1 * images + np.float32(0.05),
            encode=self.encoded,
        )
        self.snapshots.append(self.own_snapshot())

    def draw(self, rng, centres, labels):
        return (centres[labels] + 0.4 * rng.normal(size=(len(labels), D))).astype(np.float32)

    def snapshot(self, k, *args):
        return View(k, *args).snapshots[k]

    def own_snapshot(self):
        mean, origin = np.zeros((C, D), np.float32), np.full(C, -1, np.int32)
        for c in np.unique(self.labels):
            origin[c] = self.stage
            mean[c] = self.train_features(self.stage)[0][self.labels == c].mean(0)
        projector = np.eye(D) + 0.1 * np.random.default_rng(60 + self.stage).normal(size=(D, D))
        return Snapshot(self.stage, {}, projector.astype(np.float32), ClassMemory(mean, origin), {})

    def encoded(self, k, images):
        matrix = np.eye(D) + 0.25 * np.random.default_rng(50 + k).normal(size=(D, D))
        features = np.tanh(np.asarray(images) @ matrix).astype(np.float32) + np.float32(0.2)
        features[:, : self.dead] = 0
        return features

    def train_features(self, k):
        assert k in (self.stage, self.stage - 1)
        return self.encoded(k, self.images), self.labels

    def test_features(self, k, every=1):
        return self.encoded(k, self.stream)[::every]


class Oracle:
    """Means, second moments and counts from stage to stage."""

    def __init__(self, options):
        self.options = options
        self.mean, self.moment, self.count = {}, {}, {}

    def begin(self, view):
        self.old = {c: (self.mean[c], self.moment[c], row_space(self.moment[c], self.options)) for c in self.mean}
        z, labels = (np.asarray(x, float) for x in view.train_features(view.stage))
        for c in np.unique(view.labels):
            own = z[labels == c]
            self.mean[c], self.moment[c], self.count[c] = own.mean(0), own.T @ own, len(own)
        shown = view.augment(view.images) if self.options.sums == "augmented" else view.images
        self.shown = view.encoded(view.stage, shown).astype(float)
        self.labels = view.labels

    def map(self, view):
        """P."""
        shown = view.augment(view.images)
        before, after = (view.encoded(k, shown).astype(float) for k in (view.stage - 1, view.stage))
        return np.linalg.inv(before.T @ before + self.options.lam * np.eye(D)) @ before.T @ after

    def move(self, w, confined=True):
        """mu_c and Phi_c by W_c = W Pi_c; an evolution moves means by W itself."""
        for c, (mean, moment, span) in self.old.items():
            w_c = w @ span
            self.mean[c] = mean @ (w_c if confined else w)
            self.moment[c] = w_c.T @ moment @ w_c

    def solve(self):
        r = sum(self.moment[c] for c in self.old) + self.shown.T @ self.shown + self.options.gamma * np.eye(D)
        q = {c: self.count[c] * self.mean[c] for c in self.old}
        q |= {c: self.shown[self.labels == c].sum(0) for c in np.unique(self.labels)}
        weights = {c: np.linalg.inv(r) @ column for c, column in q.items()}
        self.weights = {c: delta / np.linalg.norm(delta) for c, delta in weights.items()}

    def scores(self, z):
        found = np.full((len(z), C), -np.inf)
        for c, delta in self.weights.items():
            found[:, c] = np.asarray(z, float) @ delta
        return found

    def evolve(self, view, pseudo, part):
        """Alg. 2, with R and Q taken anew before a part when `refresh` and a quarter of all images have come."""
        w, since, found = view.snapshots[view.stage].projector.astype(float), 0, []
        q_old, q_new = list(pseudo), list(pseudo @ w)
        pairs = [view.test_features(k).astype(float) for k in (view.stage - 1, view.stage)]
        self.move(w, confined=False)
        self.solve()
        for i, (a, b) in enumerate(zip(*pairs, strict=True)):
            if i % part == 0 and self.options.refresh and since >= max(self.options.refresh, i // 4):
                self.move(w, confined=False)
                self.solve()
                since = 0
            since += 1
            q_old, q_new = [*q_old[1:], a], [*q_new[1:], b]
            w = np.linalg.lstsq(np.array(q_old), np.array(q_new), rcond=None)[0]
            found.append(self.scores(b[None]))
        self.move(w, confined=False)
        self.solve()
        return np.concatenate(found)


def row_space(moment, options):
    u, s, _ = np.linalg.svd(moment)
    u = u[:, s > options.threshold * s[0]]
    return u @ u.T
