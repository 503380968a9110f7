"""TENT and EATA against float64 NumPy: what they minimise, what moves, what is kept."""

import functools

import adaptation_oracle as oracle
import jax
import numpy as np
import pytest
from adaptation_oracle import SEEN, Bench, C, D
from scipy import optimize
from support import FakeStage

from rose_jax.classifiers import CLASSIFIERS
from rose_jax.config import EataOptions
from rose_jax.testtime import eata
from rose_jax.testtime.reading import NEG, Reader, fit_scale
from rose_jax.types import ClassMemory

SCALE = 20.0


def classifier(bench):
    return CLASSIFIERS["ncm"].make(bench.parts)


def two_sgd_steps(bench, loss_of, momentum=0.9, lr=0.1):
    """Norms after each of two steps of torch's SGD on losses loss_of(norms, batch number), and losses' gradients."""
    norms = oracle.doubles(oracle.norms_of(bench.variables["params"]))
    velocity, ends = jax.tree.map(np.zeros_like, norms), []
    for number in range(2):
        grads = oracle.gradient(lambda at, number=number: loss_of(at, number), norms)
        velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
        norms = jax.tree.map(lambda p, v: p - lr * v, norms, velocity)
        ends.append(norms)
    return ends


def cosines(bench, norms, number):
    params = oracle.doubles(bench.variables["params"]) | norms
    return oracle.cosines(oracle.features(params, bench.images(number)), bench.memory)


# Logits.


def test_the_scale_has_the_highest_likelihood():
    rng = np.random.default_rng(0)
    memory = ClassMemory(rng.normal(size=(6, 8)), np.array([0, -1, 0, 1, 1, -1]))
    labels = rng.choice([0, 2, 3, 4], 200)
    rows = (memory.mean[labels] + rng.normal(size=(200, 8))).astype(np.float32)

    def minus_likelihood(scale):
        seen = memory.origin >= 0
        logits = scale * oracle.unit(rows.astype(np.float64)) @ oracle.unit(memory.mean[seen]).T
        return -np.log(oracle.softmax(logits)[np.arange(200), np.cumsum(seen)[labels] - 1]).mean()

    best = optimize.minimize_scalar(minus_likelihood, bounds=(1, 100), method="bounded", options={"xatol": 1e-7}).x
    assert 2 < best < 50
    assert fit_scale(rows, labels, memory, 100.0) == pytest.approx(best, rel=1e-4)
    assert fit_scale(rows, labels, memory, 1.5) == 1.5
    assert fit_scale(memory.mean[labels].astype(np.float32), labels, memory, 100.0) == 100.0, (
        "nothing is ever mistaken"
    )
    assert fit_scale(rows, np.where(labels == 0, 2, 0), memory, 100.0) == 1.0, "nothing is ever right"


def test_logits_of_prototypes_and_of_an_expanded_head():
    rng = np.random.default_rng(0)
    memory = ClassMemory(rng.normal(size=(3, 4)).astype(np.float32), np.array([0, 0, -1]))
    z = rng.normal(size=(6, 4)).astype(np.float32)
    expected = 7.0 * oracle.unit(z) @ oracle.unit(memory.mean).T
    found = np.asarray(Reader("prototypes", memory, np.float32(7.0), None).logits(z))
    np.testing.assert_allclose(found[:, :2], expected[:, :2], rtol=1e-5)
    assert (found[:, 2] == np.float32(NEG)).all()
    head = {"weight": rng.normal(size=(12, 4)).astype(np.float32)}  # four outputs a class, the first one upright
    found = np.asarray(Reader("head", memory, np.float32(1.0), head).logits(z))
    np.testing.assert_allclose(found[:, :2], (z @ head["weight"].T)[:, [0, 4]], rtol=1e-5)


# TENT.


def test_tent_moves_norms_down_the_entropy_and_predicts_before():
    bench = Bench("tent", tent__optimizer="sgd", tent__lr=0.1)
    ncm = classifier(bench)
    ends = two_sgd_steps(bench, lambda norms, n: oracle.entropy(SCALE * cosines(bench, norms, n)).mean())
    state = bench.begin(ncm, SCALE)
    before = oracle.doubles(oracle.norms_of(bench.variables["params"]))
    for number, after in enumerate(ends):
        state, scores = bench.step(state, number, ncm)
        expected = cosines(bench, before, number)
        np.testing.assert_allclose(np.asarray(scores)[bench.valid][:, :SEEN], expected, atol=1e-4)
        assert state.last["entropy"] == pytest.approx(oracle.entropy(SCALE * expected).mean(), rel=1e-3)
        oracle.assert_close(state.own.lasting["norms"], after)
        before = after
    moved = [
        abs(a - b).max()
        for a, b in zip(*map(jax.tree.leaves, (ends[1], oracle.norms_of(bench.variables["params"]))), strict=True)
    ]
    assert min(moved) > 1e-3, "every scale and bias takes part"
    # Nothing but norms can move: the rest of the network is what it was.
    assert jax.tree.structure(state.own.lasting["norms"]) == jax.tree.structure(before)
    for ours, trained in zip(*map(jax.tree.leaves, (state.frame.model.variables, bench.variables)), strict=True):
        np.testing.assert_array_equal(ours, trained)
    assert {k: int(v) for k, v in state.work.items()} == {
        "forwards": 14,
        "backwards": 14,
        "steps": 2,
        "broken_steps": 0,
    }


def test_the_default_is_adam_without_decay():
    """Two steps of Adam (0.9, 0.999) at 1e-3, compared by how far they go."""
    bench = Bench("tent")
    ncm, lr = classifier(bench), 1e-3
    norms = trained = oracle.doubles(oracle.norms_of(bench.variables["params"]))
    first = second = jax.tree.map(np.zeros_like, norms)
    state = bench.begin(ncm, SCALE)
    for number in range(2):
        grads = oracle.gradient(
            lambda at, number=number: oracle.entropy(SCALE * cosines(bench, at, number)).mean(), norms
        )
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, grads)
        t = number + 1
        norms = jax.tree.map(
            lambda p, m, v, t=t: p - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8),
            norms,
            first,
            second,
        )
        state, _ = bench.step(state, number, ncm)
    gone = [jax.tree.map(np.subtract, oracle.doubles(end), trained) for end in (state.own.lasting["norms"], norms)]
    oracle.assert_close(*gone, rtol=5e-3, atol=2e-6)


def test_tent_on_the_linear_head():
    """Entropies are of the head's logits; predictions stay the classifier's."""
    bench = Bench("tent", tent__optimizer="sgd", tent__lr=0.1, testtime__logits="head")
    weight = np.random.default_rng(1).normal(size=(C, D)).astype(np.float32)
    bench.model = bench.model._replace(head={"weight": weight})

    def logits(norms, number):
        params = oracle.doubles(bench.variables["params"]) | norms
        return oracle.features(params, bench.images(number)) @ weight[:SEEN].T.astype(np.float64)

    (after, _) = two_sgd_steps(bench, lambda norms, n: oracle.entropy(logits(norms, n)).mean())
    ncm = classifier(bench)
    state, scores = bench.step(bench.begin(ncm, SCALE), 0, ncm)
    oracle.assert_close(state.own.lasting["norms"], after)
    before = oracle.doubles(oracle.norms_of(bench.variables["params"]))
    np.testing.assert_allclose(np.asarray(scores)[bench.valid][:, :SEEN], cosines(bench, before, 0), atol=1e-4)


def test_a_step_that_is_not_finite_is_left_out_and_counted():
    bench = Bench("tent")
    ncm = classifier(bench)
    begun = bench.begin(ncm, np.nan)  # of the logits; the classifier's scores do not read it
    state, scores = bench.step(begun, 0, ncm)
    for a, b in zip(*map(jax.tree.leaves, (state.own, begun.own)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(np.asarray(scores)[:, :SEEN]).all()
    assert (int(state.work["steps"]), int(state.work["broken_steps"])) == (0, 1)


@pytest.mark.slow
def test_predicting_after_the_step_takes_a_pass_more():
    bench = Bench("tent", tent__optimizer="sgd", tent__lr=0.1, testtime__order="after")
    ncm = classifier(bench)
    (after, _) = two_sgd_steps(bench, lambda norms, n: oracle.entropy(SCALE * cosines(bench, norms, n)).mean())
    state, scores = bench.step(bench.begin(ncm, SCALE), 0, ncm)
    np.testing.assert_allclose(np.asarray(scores)[bench.valid][:, :SEEN], cosines(bench, after, 0), atol=2e-4)
    assert int(state.work["forwards"]) == 14


def test_persisting_carries_the_change_and_the_moments_over():
    bench = Bench("tent", testtime__persist=True)
    ncm = classifier(bench)
    state, _ = bench.step(bench.begin(ncm, SCALE), 0, ncm)
    kept = bench.adaptation.finish(state, ncm).kept
    bench.model = bench.model._replace(variables=jax.tree.map(lambda x: x + np.float32(1), bench.variables))
    again = bench.begin(ncm, SCALE, kept=kept)
    ended = oracle.doubles(state.own.lasting)
    oracle.assert_close(again.own.lasting["norms"], jax.tree.map(lambda x: x + 1, ended["norms"]), rtol=1e-5)
    oracle.assert_close(again.own.lasting["moments"], ended["moments"], rtol=0, atol=0)


def test_what_persists_adds_up_over_all_stages():
    """Three stages of networks that were trained in between: changes, steps and EATA's mean, not the last stage's alone."""
    everything = {"eata__entropy_share": 1.0, "eata__margin": "fixed", "eata__epsilon": 2.0}
    bench = Bench("eata", testtime__persist=True, **everything)
    ncm, kept = classifier(bench), None
    ones = jax.tree.map(np.ones_like, oracle.norms_of(bench.variables["params"]))
    steps, changes = 0, jax.tree.map(np.zeros_like, oracle.doubles(oracle.norms_of(bench.variables["params"])))
    for stage in range(3):
        bench.model = bench.model._replace(
            variables=jax.tree.map(lambda x, stage=stage: x + np.float32(0.1 * stage), bench.variables)
        )
        trained = oracle.doubles(oracle.norms_of(bench.model.variables["params"]))
        begun = bench.begin(ncm, SCALE, ones, kept=kept)
        oracle.assert_close(
            begun.own.lasting["norms"], jax.tree.map(np.add, trained, changes), rtol=1e-4, atol=1e-5
        )
        state = begun
        for number in range(2):
            state, _ = bench.step(state, number, ncm)
        steps += int(state.work["steps"])
        ended = oracle.doubles(state.own.lasting)
        changes = jax.tree.map(np.subtract, ended["norms"], trained)
        counts = [x for x in jax.tree.leaves(state.own.lasting["moments"]) if np.asarray(x).dtype == np.int32]
        assert counts
        assert all(int(count) == steps for count in counts)
        assert ended["mean"].min() >= 0
        assert ended["mean"].sum() == pytest.approx(1, abs=1e-4)
        kept = bench.adaptation.finish(state, ncm).kept
    assert steps == 6


# EATA.


def numpy_select(logits, valid, mean, options):
    """Which of the rows are kept, their weights, and the mean afterwards; mean: None while it is unset."""
    limit = options.entropy_share * np.log(SEEN)
    epsilon = 1.3 / np.sqrt(SEEN) if options.margin == "classes" else options.epsilon
    p, h = oracle.softmax(logits), oracle.entropy(logits)
    kept = valid & (h < limit)
    if mean is not None:
        kept &= abs(oracle.unit(p) @ oracle.unit(mean)) < epsilon
    if kept.any():
        batch_mean = p[kept].mean(0)
        mean = batch_mean if mean is None else 0.9 * mean + 0.1 * batch_mean
    return kept, np.exp(limit - h), mean


@pytest.mark.parametrize(
    "options", [EataOptions(), EataOptions(margin="fixed", epsilon=0.6)], ids=["classes", "fixed"]
)
def test_eata_filters_reliable_and_diverse_images(options):
    rng = np.random.default_rng(0)
    seen, valid = np.arange(C) < SEEN, np.arange(40) < 30
    select = jax.jit(functools.partial(eata.select, options=options))
    mean = None
    kept_numbers = []
    for spread in (6.0, 6.0, 0.01, 6.0):  # of the third batch no image is reliable
        logits = spread * rng.normal(size=(40, SEEN))
        padded = np.concatenate([logits, np.full((40, 1), NEG)], axis=1).astype(np.float32)
        before = np.zeros(C, np.float32) if mean is None else np.append(mean, 0).astype(np.float32)
        found = select(padded, seen, valid, before)
        kept, weight, mean = numpy_select(logits, valid, mean, options)
        np.testing.assert_array_equal(found.kept, kept)
        np.testing.assert_allclose(found.weight, weight, rtol=1e-4)
        np.testing.assert_allclose(found.mean[:SEEN], mean, rtol=1e-4)
        kept_numbers.append(kept.sum())
    assert kept_numbers[2] == 0
    assert all(0 < number < 30 for number in (kept_numbers[0], kept_numbers[1], kept_numbers[3]))


def test_eata_minimises_weighted_entropies_and_stays_near_what_matters():
    bench = Bench("eata", eata__optimizer="sgd", eata__lr=0.1, eata__entropy_share=0.9, eata__fisher_weight=3.0)
    ncm, rng, options = classifier(bench), np.random.default_rng(1), bench.config.eata
    trained = oracle.doubles(oracle.norms_of(bench.variables["params"]))
    fisher = jax.tree.map(lambda x: rng.random(x.shape), trained)
    means = [None]

    def loss(norms, number):
        logits = SCALE * cosines(bench, norms, number)
        everything = np.ones(len(logits), bool)
        kept, _, _ = numpy_select(SCALE * cosines(bench, at[0], number), everything, means[number], options)
        _, weight, _ = numpy_select(SCALE * cosines(bench, at[0], number), everything, means[number], options)
        away = jax.tree.map(lambda f, new, old: (f * (new - old) ** 2).sum(), fisher, norms, trained)
        return (weight * oracle.entropy(logits))[kept].mean() + 3.0 * sum(jax.tree.leaves(away))

    state = bench.begin(ncm, SCALE, jax.tree.map(np.float32, fisher))
    velocity, at = jax.tree.map(np.zeros_like, trained), [trained]
    for number in range(2):
        grads = oracle.gradient(lambda norms, number=number: loss(norms, number), at[0])
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        logits = SCALE * cosines(bench, at[0], number)
        kept, _, mean = numpy_select(logits, np.ones(len(logits), bool), means[number], options)
        means.append(mean)
        at[0] = jax.tree.map(lambda p, v: p - 0.1 * v, at[0], velocity)
        state, _ = bench.step(state, number, ncm)
        assert 0 < kept.sum() == int(state.last["kept_images"])
        oracle.assert_close(state.own.lasting["norms"], at[0])
        np.testing.assert_allclose(state.own.lasting["mean"][:SEEN], mean, rtol=1e-3)


def test_eata_without_a_kept_image_changes_no_bit():
    bench = Bench("eata", eata__entropy_share=0.0)
    ncm = classifier(bench)
    ones = jax.tree.map(np.ones_like, oracle.norms_of(bench.variables["params"]))
    state = bench.begin(ncm, SCALE, ones)
    # Once from where it begins, once after a step, when moments and the way back to the trained weights would move it.
    moved = Bench("eata", eata__entropy_share=0.9)
    for begun in (state, moved.step(state, 0, ncm)[0]):
        after, scores = bench.step(begun, 1, ncm)
        for a, b in zip(*map(jax.tree.leaves, (after.own, begun.own)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert np.isfinite(np.asarray(scores)[:, :SEEN]).all()
        assert int(after.work["steps"]) == int(begun.work["steps"])
        assert int(after.work["kept_images"]) == int(begun.work["kept_images"])
    assert int(begun.work["steps"]) == 1


def test_eatas_fisher_information():
    """Squares of two batches' mean gradients, on labels of the network's own, averaged."""
    bench = Bench("eata", eata__fisher_batch=6, eata__fisher_images=12)
    images = bench.raw.reshape(-1, *bench.raw.shape[2:])  # 20: the rest is not looked at
    view = FakeStage(
        1,
        snapshots=[None, bench.model],
        images=images,
        labels=np.zeros(20, np.int32),
        augment=lambda rows: np.asarray(rows, np.float32) / 255,
        train={1: np.random.default_rng(0).random((20, D)).astype(np.float32)},
    )
    found = bench.adaptation.fit(view, bench.memory, jax.random.key(0))
    norms, total = oracle.doubles(oracle.norms_of(bench.variables["params"])), None
    params = oracle.doubles(bench.variables["params"])
    for start in (0, 6):
        pixels = images[start : start + 6].astype(np.float64) / 255

        def logits(norms, pixels=pixels):
            z = oracle.features(params | norms, pixels)
            return float(found["scale"]) * oracle.cosines(z, bench.memory)

        labels = logits(norms).argmax(1)
        loss = lambda norms: -np.log(oracle.softmax(logits(norms))[np.arange(6), labels]).mean()  # noqa: B023, E731
        squares = jax.tree.map(np.square, oracle.gradient(loss, norms))
        total = squares if total is None else jax.tree.map(np.add, total, squares)
    oracle.assert_close(found["own"], jax.tree.map(lambda x: x / 2, total), rtol=2e-2, atol=1e-6)
    assert view.notes == {"fisher_forwards": 12, "fisher_backwards": 12}
