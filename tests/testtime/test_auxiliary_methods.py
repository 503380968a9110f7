"""TTT and TTT++ against float64 NumPy: their losses, what learns, the moments that are aligned; and their heads' training."""

import adaptation_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adaptation_oracle import SEEN, SIDE, Bench, D
from support import FakeStage

from rose_jax.classifiers import CLASSIFIERS
from rose_jax.models.heads import init_head, init_mlp, mlp
from rose_jax.statistics.mixture import Moments, mixed, moments_of, no_moments, transported
from rose_jax.testtime import ADAPTATIONS, ttt_plus
from rose_jax.train import auxiliary, losses
from rose_jax.train.objectives.base import make_base
from rose_jax.types import ClassMemory, Snapshot, Task

LAST = ("conv2", "norm2")


def rotation_head(bench, seed=5):
    """A branch that is like the network's last stage and yet another one."""
    rng = np.random.default_rng(seed)
    jiggle = lambda x: (x + 0.1 * rng.random(x.shape)).astype(np.float32)  # noqa: E731
    branch = jax.tree.map(jiggle, {name: bench.variables["params"][name] for name in LAST})
    stats = jax.tree.map(jiggle, {"norm2": bench.variables["batch_stats"]["norm2"]})
    out = jax.device_get(init_head("linear", jax.random.key(seed), 4, D))
    return {"head": {"branch": branch, "out": out}, "stats": stats}


def rotation_entropy(params, head, images, turns, stats=None, branch_stats=None):
    """Mean cross-entropy of the branch's outputs; stats: running ones instead of the batch's."""
    turned = np.stack([np.rot90(image, k) for image, k in zip(images, turns, strict=True)])
    layer3 = oracle.features(params, turned, stats, stages=(0, 1))
    z = oracle.layer(head["branch"], 2, layer3, branch_stats).mean((1, 2))
    logits = z @ head["out"]["weight"].T + head["out"]["bias"]
    return -np.log(oracle.softmax(logits)[np.arange(len(turns)), turns]).mean()


def simclr_head(seed=6, out=3):
    return {"head": jax.device_get(init_mlp(jax.random.key(seed), D, D, out)), "stats": {}}


def numpy_mlp(head, z):
    hidden = np.maximum(z @ head["hidden"]["weight"].T + head["hidden"]["bias"], 0)
    return hidden @ head["out"]["weight"].T + head["out"]["bias"]


def numpy_nt_xent(z, temperature):
    similarity = np.exp(oracle.unit(z) @ oracle.unit(z).T / temperature)
    terms = []
    for i in range(len(z)):
        partner = i + 1 if i % 2 == 0 else i - 1
        others = sum(similarity[i, k] for k in range(len(z)) if k != i)
        terms.append(-np.log(similarity[i, partner] / others))
    return np.mean(terms)


# TTT.


@pytest.mark.parametrize(("wanted", "passes", "augment"), [("random", 1, ""), ("all", 4, "none")])
def test_ttt_learns_rotations_by_trunk_and_branch_under_frozen_statistics(wanted, passes, augment):
    """Of augmented images: '' is the setting's augmentation, which here makes negatives of them."""
    bench = Bench("ttt", ttt__augment=augment, ttt__lr=0.1, ttt__turns=wanted)
    bench.parts = bench.parts._replace(transform=lambda key, images: 1 - jnp.float32(images) / 255)
    bench.adaptation = ADAPTATIONS["ttt"].make(bench.parts)
    head = rotation_head(bench)
    bench.model = bench.model._replace(extra={auxiliary.ROTATION: head})
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    state = bench.begin(ncm)
    # The numbers of turns are drawn from the batch's key, one for each row.
    key = jax.random.split(jax.random.fold_in(state.key, 0))[1]
    turns = np.asarray(jax.random.randint(key, (10,), 0, 4))[bench.valid]
    if wanted == "all":
        turns = np.tile(np.arange(4), 7)
    state, scores = bench.step(state, 0, ncm)
    params, stats = oracle.doubles(bench.variables["params"]), oracle.doubles(bench.variables["batch_stats"])
    head = oracle.doubles(head)
    images = bench.images(0)
    shown = images if augment else 1 - images
    looked_at = {"norm0": params["norm0"], "norm1": params["norm1"], "out": head["head"]["out"]}
    looked_at["norm2"] = head["head"]["branch"]["norm2"]  # the branch's

    def loss(at):
        moved = params | {name: at[name] for name in ("norm0", "norm1")}
        return rotation_entropy(
            moved,
            {"branch": head["head"]["branch"] | {"norm2": at["norm2"]}, "out": at["out"]},
            np.repeat(shown, passes, axis=0),
            turns,
            stats,
            head["stats"],
        )

    after = jax.tree.map(lambda p, g: p - 0.1 * g, looked_at, oracle.gradient(loss, looked_at))
    ours = state.own.lasting
    found = {name: ours["encoder"][name] for name in ("norm0", "norm1")} | {"out": ours["head"]["out"]}
    found["norm2"] = ours["head"]["branch"]["norm2"]
    gone = [jax.tree.map(np.subtract, oracle.doubles(end), looked_at) for end in (found, after)]
    oracle.assert_close(*gone, rtol=1e-2, atol=1e-5)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(gone[1])) > 1e-4, "all of it learns"
    assert (
        np.asarray(ours["head"]["branch"]["conv2"]["kernel"]) != head["head"]["branch"]["conv2"]["kernel"]
    ).any()
    for name in LAST:  # the network's own last stage takes no part
        for a, b in zip(
            *map(jax.tree.leaves, (ours["encoder"][name], bench.variables["params"][name])), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    # Predictions come from the network after the step, under statistics that nothing has moved.
    z = oracle.features(oracle.doubles(ours["encoder"]), images, stats)
    np.testing.assert_allclose(
        np.asarray(scores)[bench.valid][:, :SEEN], oracle.cosines(z, bench.memory), atol=1e-4
    )
    assert {k: int(v) for k, v in state.work.items()} == {
        "forwards": 7 * (passes + 1),
        "backwards": 7 * passes,
        "steps": 1,
        "broken_steps": 0,
    }


def test_the_branch_may_stay_as_it_was_trained():
    bench = Bench("ttt", ttt__train_branch=False)
    bench.model = bench.model._replace(extra={auxiliary.ROTATION: rotation_head(bench)})
    state = bench.begin(CLASSIFIERS["ncm"].make(bench.parts))
    assert set(state.own.lasting) == {"encoder"}


# TTT++.


def test_nt_xent():
    rng = np.random.default_rng(0)
    z, padding = rng.normal(size=(10, 4)), 100 * rng.normal(size=(4, 4))
    mask = np.arange(14) < 10
    rows = np.concatenate([z, padding]).astype(np.float32)
    found = jax.jit(losses.nt_xent, static_argnums=2)(rows, mask, 0.5)
    assert found == pytest.approx(numpy_nt_xent(z, 0.5), rel=1e-5)


def test_moments_of_parts_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)) + 1
    linear_map = rng.normal(size=(4, 4))

    mix, move, measure = map(jax.jit, (mixed, transported, moments_of))

    def of(part):
        return measure(part.astype(np.float32), np.ones(len(part), np.float32))

    def population(part):  # whose mixture is exact
        return Moments(np.float32(len(part)), part.mean(0), np.cov(part.T, bias=True))

    np.testing.assert_allclose(of(rows).covariance, np.cov(rows.T), rtol=1e-4)
    padded = np.concatenate([rows, np.full((5, 4), 99.0)]).astype(np.float32)
    masked = measure(padded, (np.arange(55) < 50).astype(np.float32))
    np.testing.assert_allclose(masked.mean, rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(masked.covariance, np.cov(rows.T), rtol=1e-4)
    whole = mix(population(rows[:20]), population(rows[20:]))
    np.testing.assert_allclose(whole.mean, rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(whole.covariance, np.cov(rows.T, bias=True), rtol=1e-4)
    there = move(population(rows), linear_map)
    np.testing.assert_allclose(there.mean, (rows @ linear_map).mean(0), rtol=1e-4)
    np.testing.assert_allclose(there.covariance, np.cov((rows @ linear_map).T, bias=True), rtol=1e-4)
    first = mix(no_moments(4), population(rows))
    np.testing.assert_allclose(first.covariance, np.cov(rows.T, bias=True), rtol=1e-4)


def test_noise_is_the_distance_of_later_parts_from_the_first():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3)).astype(np.float32)
    source = ttt_plus.measured(rows, np.zeros((3, 3)), 20)
    first, *later = np.split(rows.astype(np.float64), 3)
    coral = [np.square(np.cov(first.T) - np.cov(p.T)).sum() / 36 for p in later]
    mmd = [np.square(first.mean(0) - p.mean(0)).mean() for p in later]
    assert source.covariance_noise == pytest.approx(np.mean(coral), rel=1e-4)
    assert source.mean_noise == pytest.approx(np.mean(mmd), rel=1e-4)


def test_noise_does_not_depend_on_how_images_are_stored():
    """Class by class, or mixed: parts of a task that is stored class by class would be as far apart as its classes."""
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(10), 40)
    features = (3 * rng.random((10, D))[classes] + 0.2 * rng.random((400, D))).astype(np.float32)
    bench = Bench("ttt++", simclr__out=3, ttt_plus__queue_size=100)
    extra = {auxiliary.SIMCLR: simclr_head()}
    memory = bench.memory._replace(origin=np.zeros(len(bench.memory.origin), np.int32))
    found = []
    for rows in (features, features[rng.permutation(400)]):
        snapshots = [Snapshot(bench.variables, {}, np.eye(D), memory, extra)]
        view = FakeStage(0, snapshots=snapshots, images=np.zeros(400), train={0: rows})
        found.append(bench.adaptation.fit(view, memory, jax.random.key(0))["own"]["feature"])
    by_class, mixed_up = found
    assert 0.2 < by_class.covariance_noise / mixed_up.covariance_noise < 5
    assert 0.2 < by_class.mean_noise / mixed_up.mean_noise < 5
    apart = ttt_plus.measured(features, np.zeros((D, D)), 100)
    assert apart.mean_noise > 20 * mixed_up.mean_noise
    assert ttt_plus.measured(features, np.zeros((D, D)), 10).mean_noise != pytest.approx(apart.mean_noise, rel=0.1)


def test_a_map_that_the_task_shows_is_found_and_other_directions_stay():
    rng = np.random.default_rng(0)
    old = np.concatenate([rng.normal(size=(200, 3)), np.zeros((200, 2))], axis=1)
    linear_map = np.eye(5)
    linear_map[:3, :3] = rng.normal(size=(3, 3))
    found = ttt_plus.map_between(old, old @ linear_map)
    np.testing.assert_allclose(found[:3, :3], linear_map[:3, :3], atol=0.05)
    np.testing.assert_allclose(found[3:], np.eye(5)[3:], atol=1e-6)


def test_the_queue_holds_the_newest_rows_and_no_padding():
    push = jax.jit(ttt_plus.pushed)
    queue = ttt_plus.Queue(jnp.zeros((5, 1)), jnp.zeros((5, 2)), jnp.zeros(5, bool))
    for first, valid in ((1, [True, False, True]), (4, [True, True, True]), (7, [False, False, True])):
        rows = jnp.arange(first, first + 3.0)[:, None]
        queue = push(queue, {"feature": rows, "head": jnp.tile(rows, (1, 2))}, jnp.array(valid))
    np.testing.assert_array_equal(queue.feature[:, 0], [9, 4, 5, 6, 1])
    np.testing.assert_array_equal(queue.head[:, 1], queue.feature[:, 0])
    assert queue.filled.all()


@pytest.mark.parametrize(
    ("partial", "moves"),
    [(True, False), pytest.param(False, True, marks=pytest.mark.slow)],
    ids=["partial", "full_only_and_views_move_statistics"],
)
def test_ttt_plus_steps_down_the_sum_of_its_losses(partial, moves, monkeypatch):
    """Two batches, the second with a queue that is not full; views are the image and its mirror image."""

    def mirrored(key, images):
        return jnp.stack([images, images[:, :, ::-1]], axis=1).reshape(-1, *images.shape[1:])

    monkeypatch.setattr(ttt_plus, "simclr_pair", mirrored)
    options = {"ttt_plus__queue_size": 30, "testtime__batch_size": 10, "simclr__out": 3, "ttt_plus__lr": 1e-3}
    bench = Bench("ttt++", **options, ttt_plus__partial_queue=partial, simclr__moves_statistics=moves)
    head, rng = simclr_head(), np.random.default_rng(0)
    bench.model = bench.model._replace(extra={auxiliary.SIMCLR: head})
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    source = {}
    for name, dim in (("feature", D), ("head", 3)):
        rows = rng.random((40, dim)).astype(np.float32)
        source[name] = ttt_plus.measured(rows, np.zeros((dim, dim), np.float32), 20)
    state = bench.begin(ncm, fitted=source)
    assert len(state.own.passing["queue"].feature) == 30 - 10, "with the batch it is queue_size"
    head = oracle.doubles(head["head"])
    exact, queue = oracle.doubles(source), np.zeros((0, D))
    mean = oracle.doubles(state.own.lasting["stats"])["norm0"]["mean"]
    for number in range(2):
        images = bench.images(number)
        views = np.stack([images, images[:, :, ::-1]], axis=1).reshape(-1, SIDE, SIDE, 3)
        given = oracle.doubles(state.own.lasting["params"])
        norms = oracle.norms_of(given)
        for shown in (views, images) if moves else (images,):
            passed = np.einsum("nhwcij,ijcd->nhwd", windows(shown), given["conv0"]["kernel"])
            mean = 0.9 * mean + 0.1 * passed.mean((0, 1, 2))

        def loss(norms, images=images, views=views, given=given, queue=queue):
            total = 0.5 / 0.07 * numpy_nt_xent(numpy_mlp(head, oracle.features(given | norms, views)), 0.5)
            z = np.concatenate([oracle.features(given | norms, images), queue if partial else queue[:0]])
            for name, rows, weight in (("feature", z, 5.0), ("head", numpy_mlp(head, z), 20.0)):
                wanted = exact[name]
                apart = np.square(np.cov(rows.T) - wanted.moments.covariance).sum() / (4 * rows.shape[1] ** 2)
                total += weight * apart / wanted.covariance_noise
                total += weight * 0.5 * np.square(rows.mean(0) - wanted.moments.mean).mean() / wanted.mean_noise
            return total

        grads = oracle.gradient(loss, norms, step=1e-6)
        queue = np.concatenate([oracle.features(given, images), queue])
        before = oracle.doubles(state.own.lasting)
        state, scores = bench.step(state, number, ncm)
        velocity = oracle.norms_of(before["moments"][1].trace)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        oracle.assert_close(oracle.norms_of(state.own.lasting["moments"][1].trace), velocity, rtol=5e-3, atol=5e-3)
        after = jax.tree.map(lambda p, v: p - 1e-3 * v, norms, velocity)
        oracle.assert_close(oracle.norms_of(state.own.lasting["params"]), after, rtol=1e-3, atol=1e-5)
    # Statistics have moved by the batch in each step, by the views only if told, and predictions read them.
    ours = oracle.doubles(state.own.lasting)
    np.testing.assert_allclose(ours["stats"]["norm0"]["mean"], mean, rtol=1e-4, atol=1e-6)
    z = oracle.features(ours["params"], bench.images(1), ours["stats"])
    np.testing.assert_allclose(
        np.asarray(scores)[bench.valid][:, :SEEN], oracle.cosines(z, bench.memory), atol=1e-4
    )
    assert {k: int(v) for k, v in state.work.items()} == {
        "forwards": 56,
        "backwards": 42,
        "steps": 2,
        "broken_steps": 0,
    }


@pytest.mark.parametrize("moments", ["all_tasks", "newest"])
def test_moments_of_earlier_tasks_are_transported_and_mixed(moments):
    """Three stages with made-up features; what the stream is aligned to is in the state."""
    rng = np.random.default_rng(0)
    bench = Bench("ttt++", simclr__out=3, ttt_plus__moments=moments)
    ncm = CLASSIFIERS["ncm"].make(bench.parts)
    memory = bench.memory._replace(origin=np.zeros(len(bench.memory.origin), np.int32))
    kept, expected = bench.adaptation.blank(bench.model), {}
    snapshots, features = [], {}
    for stage in range(3):
        projector = (np.eye(D) + 0.1 * rng.normal(size=(D, D))).astype(np.float32)
        extra = {auxiliary.SIMCLR: simclr_head(stage)}
        snapshots.append(Snapshot(bench.variables, {}, projector, memory, extra))
        features = {k: rng.random((30, D)).astype(np.float32) for k in (stage - 1, stage)}
        view = FakeStage(stage, snapshots=snapshots, images=np.zeros(30), train=features)
        bench.model = bench.model._replace(extra=extra)
        fitted = bench.adaptation.fit(view, memory, jax.random.key(0))
        state = bench.begin(ncm, fitted=fitted["own"], kept=kept)
        kept = bench.adaptation.finish(state, ncm).kept
        rows = {k: outputs(snapshots[k], features[k]) for k in ({stage - 1, stage} - {-1})}
        for name in ("feature", "head"):
            new = rows[stage][name]
            now = new.mean(0), np.cov(new.T)
            if stage and moments == "all_tasks":
                own_map = ttt_plus.map_between(rows[stage - 1]["head"], new) if name == "head" else projector
                now = mixture(stage / (stage + 1), expected[name], own_map.astype(np.float64), now)
            expected[name] = now
            found = state.own.passing["source"][name]
            np.testing.assert_allclose(found.mean, now[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.covariance, now[1], rtol=1e-3, atol=1e-5)


def outputs(snapshot, features):
    head = snapshot.extra[auxiliary.SIMCLR]["head"]
    return {
        "feature": features.astype(np.float64),
        "head": np.asarray(mlp(head, features), np.float64),
    }


def mixture(share, earlier, linear_map, new):
    """Mean and covariance of both together, the earlier ones moved, with so large a share."""
    moved = earlier[0] @ linear_map, linear_map.T @ earlier[1] @ linear_map
    mean = share * moved[0] + (1 - share) * new[0]
    spread = [np.outer(m - mean, m - mean) for m in (moved[0], new[0])]
    return mean, share * (moved[1] + spread[0]) + (1 - share) * (new[1] + spread[1])


# Training the heads.


def objective_terms(kind, prev=None, **options):
    """Terms of the wrapped objective (None: it alone) on one batch, its parts, and what was trained and kept."""
    bench = Bench("none", **options)
    made = make_base(bench.parts, bench.config.loss)
    if kind is not None:
        made = auxiliary.with_head(made, bench.parts, kind)
    task = Task(np.int32(0), np.int32(0), np.int32(2), np.float32(0))
    trainable, kept = made.begin(jax.random.key(0), prev, task)
    labels = np.arange(10, dtype=np.int32) % 2
    batch = jax.jit(made.batch)(jax.random.key(1), bench.raw[0], labels, bench.valid, task)
    total, parts = jax.jit(made.loss)(trainable, kept, None, batch, task, jax.random.key(2))
    return bench, total, parts, trainable, kept, batch


def test_the_rotation_head_is_trained_on_all_four_rotations():
    bench, total, parts, trainable, kept, _ = objective_terms("rotation")
    images = np.repeat(bench.images(0), 4, axis=0)
    params, head = oracle.doubles(trainable["encoder"]), oracle.doubles(trainable[auxiliary.ROTATION])
    for name in LAST:  # it begins as a copy
        oracle.assert_close(head["branch"][name], params[name], rtol=0, atol=0)
    expected = rotation_entropy(params, head, images, np.tile(np.arange(4), 7))
    assert parts.terms["rotation"] == pytest.approx(expected, rel=1e-4)
    others = parts.terms["ce"] + bench.config.loss.supcon_weight * parts.terms["supcon"]
    assert total == pytest.approx(float(others + parts.terms["rotation"]), rel=1e-5)
    # Rotated images move the trunk's statistics after the upright ones, and leave the last stage's alone.
    begun, after = oracle.doubles(kept["encoder"]), oracle.doubles(parts.kept["encoder"])
    turned = np.concatenate([np.rot90(bench.images(0), k, axes=(1, 2)) for k in range(4)])
    x = np.einsum("nhwcij,ijcd->nhwd", windows(turned), params["conv0"]["kernel"])
    y = np.einsum("nhwcij,ijcd->nhwd", windows(bench.images(0)), params["conv0"]["kernel"])
    once = 0.9 * begun["norm0"]["mean"] + 0.1 * y.mean((0, 1, 2))
    np.testing.assert_allclose(after["norm0"]["mean"], 0.9 * once + 0.1 * x.mean((0, 1, 2)), rtol=1e-4)
    upright = oracle.features(params, bench.images(0), stages=(0, 1))
    z = np.einsum("nhwcij,ijcd->nhwd", windows(upright, 1), params["conv2"]["kernel"])
    once = 0.9 * begun["norm2"]["mean"] + 0.1 * z.mean((0, 1, 2))
    np.testing.assert_allclose(after["norm2"]["mean"], once, rtol=1e-4, atol=1e-6)


def windows(x, stride=2):
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::stride, ::stride]


def test_the_simclr_head_is_trained_on_pairs_of_views(monkeypatch):
    """Without the jitter of colours, which takes seconds to compile; views have a test of their own."""
    monkeypatch.setattr(auxiliary.views, "colour_jitter", lambda planes, order, strength: planes)
    bench, total, parts, trainable, _, batch = objective_terms("simclr")
    views, _, mask = batch.extra["auxiliary"]
    np.testing.assert_array_equal(mask, np.repeat(bench.valid, 2))
    params, head = oracle.doubles(trainable["encoder"]), oracle.doubles(trainable[auxiliary.SIMCLR])
    z = oracle.features(params, np.asarray(views, np.float64)[np.asarray(mask)])
    expected = numpy_nt_xent(numpy_mlp(head, z), 0.5)
    assert parts.terms["simclr"] == pytest.approx(expected, rel=1e-3)
    others = parts.terms["ce"] + bench.config.loss.supcon_weight * parts.terms["supcon"]
    assert total == pytest.approx(float(others + 0.4 * parts.terms["simclr"]), rel=1e-5)


@pytest.mark.parametrize("kind", ["rotation", "simclr"])
def test_whether_auxiliary_images_move_running_statistics(kind, monkeypatch):
    """If not, these are what the objective alone leaves, to the bit. The loss is the same either way."""
    monkeypatch.setattr(auxiliary.views, "colour_jitter", lambda planes, order, strength: planes)
    alone = objective_terms(None)[2].kept
    _, total, parts, *_ = objective_terms(kind, **{f"{kind}__moves_statistics": False})
    _, other_total, other_parts, *_ = objective_terms(kind, **{f"{kind}__moves_statistics": True})
    jax.tree.map(np.testing.assert_array_equal, parts.kept["encoder"], alone)
    assert np.abs(other_parts.kept["encoder"]["norm0"]["mean"] - alone["norm0"]["mean"]).max() > 1e-3
    assert total == other_total


@pytest.mark.parametrize("kind", ["rotation", "simclr"])
def test_one_head_serves_all_tasks(kind):
    bench = Bench("none")
    made = auxiliary.with_head(make_base(bench.parts, bench.config.loss), bench.parts, kind)
    first = Task(np.int32(0), np.int32(0), np.int32(2), np.float32(0))
    trainable, kept = made.begin(jax.random.key(0), None, first)
    view = FakeStage(encode=lambda variables, images: np.ones((4, D), np.float32), images=np.zeros(4))
    snapshot = made.finish(trainable, kept, None, view, first)
    assert isinstance(snapshot.memory, ClassMemory)
    again, kept_again = made.begin(
        jax.random.key(1), snapshot, first._replace(number=np.int32(1), offset=np.int32(2))
    )
    name = {"rotation": auxiliary.ROTATION, "simclr": auxiliary.SIMCLR}[kind]
    oracle.assert_close(again[name], oracle.doubles(trainable[name]), rtol=0, atol=0)
    oracle.assert_close(kept_again["auxiliary"], oracle.doubles(kept["auxiliary"]), rtol=0, atol=0)
