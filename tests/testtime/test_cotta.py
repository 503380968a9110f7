"""CoTTA against float64 NumPy: teacher, student, what returns, and when the batch is augmented."""

import adaptation_oracle as oracle
import jax
import numpy as np
import pytest
from adaptation_oracle import SEEN, Bench, C, D
from scipy import stats
from support import FakeStage

from rose_jax.classifiers import CLASSIFIERS
from rose_jax.data.augment import cotta as augmentation
from rose_jax.testtime import cotta

SCALE = 20.0
OPTIONS = {"cotta__optimizer": "sgd", "cotta__lr": 0.1, "cotta__teacher": 0.7, "cotta__restore": 0.0}


def cosines(bench, params, pixels):
    return oracle.cosines(oracle.features(params, pixels), bench.memory)


def learned(bench, student, teacher, pixels, wanted, symmetric=False):
    """Student and teacher after a step towards logits `wanted`; the student only at its norms, where we look."""
    target = oracle.softmax(wanted)

    def loss(norms):
        p = oracle.softmax(SCALE * cosines(bench, student | norms, pixels))
        each = -(target * np.log(p)).sum(1)
        return ((each - (p * np.log(target)).sum(1)) / 2 if symmetric else each).mean()

    grads = oracle.gradient(loss, oracle.norms_of(student))
    moved = jax.tree.map(lambda p, g: p - 0.1 * g, oracle.norms_of(student), grads)
    return moved, jax.tree.map(lambda t, s: 0.7 * t + 0.3 * s, oracle.norms_of(teacher), moved)


def with_another_teacher(bench, state):
    """The state, and in float64 a teacher that knows something else than the student, which would have nothing to learn."""
    rng = np.random.default_rng(0)
    other = jax.tree.map(lambda x: x + 0.1 * rng.random(x.shape), oracle.doubles(bench.variables["params"]))
    lasting = state.own.lasting | {"teacher": {"encoder": jax.tree.map(np.float32, other), "head": None}}
    return state._replace(own=state.own._replace(lasting=lasting)), other


@pytest.mark.parametrize(
    "symmetric", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["student", "symmetric"]
)
def test_the_student_follows_the_teacher_and_the_teacher_the_student(symmetric):
    bench = Bench("cotta", **OPTIONS, cotta__loss="symmetric" if symmetric else "student")
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    state = bench.begin(ncm, SCALE, np.float32(0))  # no confidence is below 0: the plain teacher
    student = oracle.doubles(bench.variables["params"])
    state, other = with_another_teacher(bench, state)
    state, scores = bench.step(state, 0, ncm)
    pixels = bench.images(0)
    wanted = cosines(bench, other, pixels)
    np.testing.assert_allclose(np.asarray(scores)[bench.valid][:, :SEEN], wanted, atol=1e-4)
    student, teacher = learned(bench, student, other, pixels, SCALE * wanted, symmetric)
    oracle.assert_close(oracle.norms_of(state.own.lasting["student"]["encoder"]), student)
    oracle.assert_close(oracle.norms_of(state.own.lasting["teacher"]["encoder"]), teacher)
    kernel = bench.variables["params"]["conv1"]["kernel"]
    assert (np.asarray(state.own.lasting["student"]["encoder"]["conv1"]["kernel"]) != kernel).mean() > 0.9
    assert int(state.work["forwards"]) == 3 * 7
    assert int(state.work["augmented_batches"]) == 0


def test_an_unsure_batch_is_averaged_over_augmentations(monkeypatch):
    """Each augmentation here is one of three powers of the image: the mean is over logits, each in its own statistics."""
    powers = np.array([0.5, 1.0, 2.0])
    keys = []

    def darker(key, images):
        which = jax.random.randint(key, (), 0, 3)
        jax.debug.callback(lambda k: keys.append(int(k)), which)
        return images ** jax.numpy.asarray(powers, images.dtype)[which]

    monkeypatch.setattr(augmentation, "augment", darker)
    bench = Bench("cotta", **OPTIONS, cotta__augmentations=5)
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    state, scores = bench.step(bench.begin(ncm, SCALE, np.float32(1)), 0, ncm)  # every confidence is below 1
    jax.effects_barrier()
    params = oracle.doubles(bench.variables["params"])
    assert len(keys) == 5
    assert len(set(keys)) > 1, "each has a key of its own"
    expected = np.mean([cosines(bench, params, bench.images(0) ** powers[k]) for k in keys], axis=0)
    np.testing.assert_allclose(np.asarray(scores)[bench.valid][:, :SEEN], expected, atol=1e-4)
    # The student learns from the mean of the logits, on the plain batch.
    student, _ = learned(bench, params, params, bench.images(0), SCALE * expected)
    gone = [
        jax.tree.map(np.subtract, oracle.doubles(end), oracle.norms_of(params))
        for end in (oracle.norms_of(state.own.lasting["student"]["encoder"]), student)
    ]
    oracle.assert_close(*gone, rtol=1e-2, atol=2e-5)
    assert {k: int(v) for k, v in state.work.items()} == {
        "forwards": (3 + 5) * 7,
        "backwards": 7,
        "steps": 1,
        "broken_steps": 0,
        "augmented_batches": 1,
    }


def test_what_decides_is_the_trained_network_s_mean_confidence_without_padding():
    """A threshold on either side of it; the least confidence, padding's and the teacher's lie elsewhere."""
    bench = Bench("cotta", **OPTIONS, cotta__augmentations=1)
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    begun = bench.begin(ncm, SCALE, np.float32(0))
    begun, other = with_another_teacher(bench, begun)

    def sure(params, pixels):
        return oracle.softmax(SCALE * cosines(bench, params, pixels)).max(1)

    trained = oracle.doubles(bench.variables["params"])
    mean = sure(trained, bench.images(0)).mean()
    gap = 2e-3
    elsewhere = [sure(trained, bench.images(0)).min(), sure(other, bench.images(0)).mean()]
    assert min(abs(mean - value) for value in elsewhere) > 2 * gap
    for threshold, augmented in ((mean - gap, 0), (mean + gap, 1)):
        frame = begun.frame._replace(fitted=np.float32(threshold))
        state, _ = bench.step(begun._replace(frame=frame), 0, ncm)
        assert int(state.work["augmented_batches"]) == augmented


def test_a_head_that_is_read_learns_too():
    bench = Bench("cotta", **OPTIONS, testtime__logits="head")
    weight = np.random.default_rng(1).normal(size=(C, D)).astype(np.float32)
    bench.model = bench.model._replace(head={"weight": weight})
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    begun = bench.begin(ncm, SCALE, np.float32(0))
    other = np.float32(weight + 0.3)
    other[0] += 1
    lasting = begun.own.lasting
    lasting = lasting | {"teacher": lasting["teacher"] | {"head": {"weight": other}}}
    state, _ = bench.step(begun._replace(own=begun.own._replace(lasting=lasting)), 0, ncm)
    z = oracle.features(oracle.doubles(bench.variables["params"]), bench.images(0))
    target, p = (oracle.softmax(z @ rows[:SEEN].T.astype(float)) for rows in (other, weight))
    expected = weight[:SEEN] - 0.1 * (p - target).T @ z / len(z)  # of a softmax regression
    np.testing.assert_allclose(state.own.lasting["student"]["head"]["weight"][:SEEN], expected, atol=2e-4)
    assert np.abs(expected - weight[:SEEN]).max() > 1e-2
    np.testing.assert_array_equal(state.own.lasting["student"]["head"]["weight"][SEEN:], weight[SEEN:])


def test_weights_return_to_their_trained_values_at_random():
    rng = np.random.default_rng(0)
    trained = {"a": rng.random((40, 30)), "b": {"c": rng.random(200)}}
    student = jax.tree.map(lambda x: x + 1, trained)
    found = cotta.restored(jax.random.key(0), student, trained, 0.1)
    returned = []
    for ours, old, new in zip(*map(jax.tree.leaves, (found, trained, student)), strict=True):
        back = np.asarray(ours) == old.astype(np.float32)
        np.testing.assert_array_equal(np.asarray(ours)[~back], new.astype(np.float32)[~back])
        returned.append(back.ravel())
    assert stats.binomtest(int(np.concatenate(returned).sum()), 1400, 0.1).pvalue > 1e-3


def test_the_teacher_follows_the_student_before_its_weights_return():
    after = []
    for restore in (0.0, 1.0):
        bench = Bench("cotta", **OPTIONS | {"cotta__restore": restore})
        ncm = CLASSIFIERS["ncm"].make(bench.parts)
        state, _ = with_another_teacher(bench, bench.begin(ncm, SCALE, np.float32(0)))
        state, _ = bench.step(state, 0, ncm)
        after.append(state.own.lasting)
    kept, returned = after
    # And a second time: they return to what was trained, not to what the step began with.
    halfway = jax.tree.map(lambda x: x + np.float32(0.01), returned["student"])
    state = state._replace(own=state.own._replace(lasting=returned | {"student": halfway}))
    again = bench.step(state, 1, ncm)[0].own.lasting["student"]["encoder"]
    jax.tree.map(np.testing.assert_array_equal, again, bench.variables["params"])
    trained = bench.variables["params"]
    jax.tree.map(np.testing.assert_array_equal, returned["student"]["encoder"], trained)
    moved = jax.tree.map(lambda new, old: float(np.abs(new - old).max()), kept["student"]["encoder"], trained)
    assert max(jax.tree.leaves(moved)) > 1e-3, "there was something to follow"
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), returned["teacher"], kept["teacher"]
    )


def test_the_threshold_is_a_quantile_of_the_confidence_on_the_task():
    bench = Bench("cotta", testtime__batch_size=10)
    images = bench.raw.reshape(-1, *bench.raw.shape[2:])
    view = FakeStage(
        1,
        snapshots=[None, bench.model],
        images=images,
        labels=np.zeros(20, np.int32),
        augment=lambda rows: np.asarray(rows, np.float32) / 255,
        train={1: np.random.default_rng(0).random((20, D)).astype(np.float32)},
    )
    found = bench.adaptation.fit(view, bench.memory, jax.random.key(0))
    params, sure = oracle.doubles(bench.variables["params"]), []
    for start in (0, 10):
        logits = float(found["scale"]) * cosines(
            bench, params, images[start : start + 10].astype(np.float64) / 255
        )
        sure.append(oracle.softmax(logits).max(1))
    assert found["own"] == pytest.approx(np.quantile(np.concatenate(sure), 0.05) - 0.05, rel=1e-4)
    bench = Bench("cotta", cotta__threshold="fixed", cotta__confidence=0.1)
    assert bench.adaptation.fit(view, bench.memory, jax.random.key(0))["own"] == np.float32(0.1)
