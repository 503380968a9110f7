"""Rows that adapt the network, stage by stage: controls, resets, labels, devices, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_batch_norm import BATCH, PER_CLASS, small_config, snapshots

from rose_jax import experiment
from rose_jax.errors import UserError
from rose_jax.methods import METHODS, resolve
from rose_jax.models.heads import init_head, init_mlp
from rose_jax.run.scoring import Scorer
from rose_jax.run.stage import Stage
from rose_jax.runtime.sharding import Layout
from rose_jax.testtime import ttt_plus
from rose_jax.train.auxiliary import ROTATION, SIMCLR

AGREE = 1e-5  # relative: entropies on one device and on eight
STILL = {f"{section}__lr": 0.0 for section in ("tent", "eata", "cotta", "ttt", "ttt_plus")}
ROWS = ("batch_norm", "tent", "eata", "cotta", "ttt", "ttt++")


def mirrored(key, images):
    """Instead of SimCLR's views, which take seconds to compile."""
    return jnp.stack([images, images[:, :, ::-1]], axis=1).reshape(-1, *images.shape[1:])


class Family:
    """All rows over two stages with the same encoders; every stage's view is shared, as in a run."""

    def __init__(self, devices=1, rows=ROWS, **options):
        config = small_config()
        config.cotta.augmentations, config.cotta.threshold, config.cotta.confidence = 2, "fixed", 1.0
        config.eata.entropy_share, config.eata.margin, config.eata.epsilon = 1.0, "fixed", 1.0  # keeps nearly all
        config.ttt_plus.queue_size, config.simclr.out = 40, 4
        # Steps that can be seen; at ten times these, encoders that nobody trained break within a stage.
        config.ttt.lr, config.ttt_plus.lr = 0.1, 1e-5
        config.cotta.lr, config.cotta.teacher = 1e-2, 0.9
        for key, value in options.items():
            section, _, field = key.partition("__")
            setattr(getattr(config, section), field, value)
        self.features = experiment.make_features(config, Layout(jax.devices()[:devices]))
        layout, dim = self.features.images.layout, self.features.parts.encoder.feature_dim
        left = []
        for snapshot in snapshots(self.features):
            # Running statistics as they are at first, under which features are not all zero.
            params = snapshot.variables["params"]
            stats = jax.tree.map(lambda x: x - 1.0, snapshot.variables["batch_stats"])
            branch = {name: params[name] for name in ("conv2", "norm2")}
            out = init_head("linear", jax.random.key(1), 4, dim)
            extra = {
                ROTATION: {"head": {"branch": branch, "out": out}, "stats": {"norm2": stats["norm2"]}},
                SIMCLR: {"head": init_mlp(jax.random.key(2), dim, dim, 4), "stats": {}},
            }
            variables = {"params": params, "batch_stats": stats}
            left.append(layout.replicate(snapshot._replace(variables=variables, extra=extra)))
        self.left, self.streams = left, [self.features.images.stream(stage) for stage in range(2)]
        self.scorers = {row: Scorer(row, METHODS[row], self.features.parts, layout, None) for row in rows}

    def view(self, stage):
        return Stage(self.features, stage, self.left, self.streams[stage], 8)

    def go(self):
        """Outcomes of both stages by row."""
        outcomes = {row: [] for row in self.scorers}
        for scorer in self.scorers.values():
            scorer.restart()
        for stage in range(2):
            view = self.view(stage)
            for row, scorer in self.scorers.items():
                outcomes[row].append(scorer.score(view))
        return outcomes


@pytest.fixture(scope="module", autouse=True)
def quick_views():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ttt_plus, "simclr_pair", mirrored)
        yield


@pytest.fixture(scope="module")
def family():
    made = Family()
    return made, made.go()


def assert_same(one, other):
    np.testing.assert_array_equal(one.predictions, other.predictions)
    for name, values in one.trace.items():
        np.testing.assert_array_equal(values, other.trace[name])


def test_tent_that_learns_nothing_is_batch_norm(family):
    still = Family(rows=("tent",), tent__lr=0.0).go()["tent"]
    for one, other in zip(still, family[1]["batch_norm"], strict=True):
        assert_same(one, other)
    moved = family[1]["tent"][1].trace["entropy"] - still[1].trace["entropy"]
    assert moved[0] == 0, "the first batch is predicted before any step"
    assert (moved[1:] != 0).all()


def test_no_row_and_no_label_changes_a_prediction_and_every_stage_starts_afresh(family):
    made, outcomes = family
    made.features.images.labels["test"] = np.random.default_rng(0).permutation(made.features.images.labels["test"])
    view = made.view(1)
    for row in reversed(ROWS):  # in another order than before
        if row == "ttt++":  # its moments are those of both stages
            continue
        scorer = made.scorers[row]
        scorer.restart(after=outcomes[row][0]._replace(kept=()))  # nothing of the first stage but its prototypes
        assert_same(scorer.score(view), outcomes[row][1])
    again = made.go()
    for row in ROWS:
        for one, other in zip(again[row], outcomes[row], strict=True):
            assert_same(one, other)


def test_one_program_a_row_and_what_is_counted(family):
    made, outcomes = family
    batches = [-(-PER_CLASS * 5 * (stage + 1) // BATCH) for stage in range(2)]
    passes = {
        "batch_norm": (1, 0),
        "tent": (1, 1),
        "eata": (1, 1),
        "cotta": (5, 1),
        "ttt": (2, 1),
        "ttt++": (4, 3),
    }
    for row, scorer in made.scorers.items():
        assert len(scorer.programs) == 1
        for stage, outcome in enumerate(outcomes[row]):
            assert scorer.passes_per_image(outcome, stage) == passes[row]
            assert outcome.trace["images"].tolist()[:-1] == [BATCH] * (batches[stage] - 1)
            assert outcome.trace["images"].sum() == len(outcome.predictions)
            assert np.isfinite(outcome.trace["entropy"]).all()
    assert outcomes["cotta"][1].counts["augmented_batches"] == batches[1]
    assert outcomes["eata"][1].counts["kept_images"] == outcomes["eata"][1].trace["kept_images"].sum() > 0
    assert outcomes["eata"][1].counts["fisher_backwards"] == PER_CLASS * 5


def compare(family, rows):
    """Eight devices pad a batch of 12 to 16; and what they agree on is not that nothing moves."""
    many, still = (Family(devices=8, rows=rows, **options).go() for options in ({}, STILL))
    for row in rows:
        moved = np.abs(many[row][1].trace["entropy"] / still[row][1].trace["entropy"] - 1)
        assert moved.max() > 10 * AGREE, row
        for one, other in zip(family[1][row], many[row], strict=True):
            assert np.mean(one.predictions == other.predictions) > 0.98, row
            np.testing.assert_allclose(one.trace["entropy"], other.trace["entropy"], rtol=AGREE, err_msg=row)
            np.testing.assert_array_equal(one.trace["images"], other.trace["images"])


def test_eight_devices_do_the_same(family):
    compare(family, ("ttt",))


@pytest.mark.slow
@pytest.mark.parametrize("row", ["tent", "eata", "cotta", "ttt++"])
def test_eight_devices_do_the_same_with_every_row(family, row):
    compare(family, (row,))


@pytest.mark.slow
def test_what_persists_makes_the_next_stage_another(family):
    for row, after in Family(testtime__persist=True).go().items():
        assert_same(after[0], family[1][row][0])
        same = np.array_equal(after[1].trace["entropy"], family[1][row][1].trace["entropy"])
        assert same == (row == "batch_norm"), row


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_orders(family, order):
    """The order that is not the authors' gives other predictions' entropies."""
    for row, outcomes in Family(testtime__order=order, rows=("tent", "cotta", "ttt", "ttt++")).go().items():
        official = order == ("after" if row.startswith("ttt") else "before")
        same = np.array_equal(outcomes[1].trace["entropy"], family[1][row][1].trace["entropy"])
        assert same == official, row


def test_rows_by_composition():
    rows = resolve(["lwf+tent", "pass+eata", "frozen+cotta", "base_rotation+rose"])
    assert rows["pass+eata"][:4] == ("pass", "projector", "eata", "ncm")
    assert METHODS["ttt++_off"]._replace(test_time="ttt++", origin="paper") == METHODS["ttt++"]


@pytest.mark.parametrize(
    ("row", "head", "objective"), [("lwf+ttt", ROTATION, "base_rotation"), ("base+ttt++", SIMCLR, "base_simclr")]
)
def test_an_objective_without_the_head_is_refused(row, head, objective, tmp_path):
    config = small_config()
    config.methods = (row,)
    with pytest.raises(UserError, match=f"needs {head}, which .* does not train. Objectives that do: {objective}"):
        experiment.run(config, tmp_path)
