"""What a result depends on is in its name: two objectives in one workdir, and what each change touches."""

import json
import shutil

import jax
import numpy as np
import pytest

from configs.digits_cold5 import get_config
from rose_jax import experiment
from rose_jax.errors import UserError
from rose_jax.methods import METHODS, resolve
from rose_jax.run import scoring, trajectory
from rose_jax.run.identity import scoring_digest, trajectory_options
from rose_jax.runtime.sharding import Layout

ROWS = ("base", "rose", "projector", "efc")


def small_config(**changes):
    config = get_config()
    config.methods = ROWS
    config.scenario.task_sizes = (5, 5)
    config.data.images_per_class = 40
    config.model.encoder, config.model.width = "tiny", 1
    for schedule in (config.train.first, config.train.later, config.efc.recipe.first, config.efc.recipe.later):
        schedule.epochs, schedule.milestones = 1, ()
    config.evolution.capacity = 32
    for key, value in changes.items():
        section, name = key.split("__")
        setattr(getattr(config, section), name, value)
    return config


def run(workdir, methods=ROWS, overwrite=False, **changes):
    config = small_config(**changes)
    config.methods = methods
    return experiment.run(config, workdir, layout=Layout(jax.devices()[:1]), overwrite=overwrite)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("two") / "run"
    run(workdir)
    return workdir


@pytest.fixture
def workdir(finished, tmp_path):
    """A copy of the finished run, to be changed at will."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def done(monkeypatch):
    """What was trained and what was streamed: (objective, task) and (row, stage)."""
    seen = {"trained": [], "streamed": []}
    train, stream = trajectory.train_steps, scoring.Scorer._run

    def counted_train(*args, **kwargs):
        seen["trained"].append(int(args[4].number))
        return train(*args, **kwargs)

    def counted_stream(self, view):
        seen["streamed"].append(self.name)
        return stream(self, view)

    monkeypatch.setattr(trajectory, "train_steps", counted_train)
    monkeypatch.setattr(scoring.Scorer, "_run", counted_stream)
    return seen


def test_nothing_changed_nothing_is_done(workdir, done):
    run(workdir)
    assert done == {"trained": [], "streamed": []}


def test_an_option_of_another_objective_refuses_nothing(workdir, done):
    run(workdir, methods=("base", "rose"), efc__efm_weight=3.0)
    assert done == {"trained": [], "streamed": []}
    with pytest.raises(
        UserError, match=r"(?s)encoders of 'efc' .* other options:\n  efc.efm_weight: there 10.0, here 3.0"
    ):
        run(workdir, efc__efm_weight=3.0)


def test_the_loss_of_base_refuses_base_and_leaves_efc_alone(workdir, done):
    with pytest.raises(UserError, match=r"(?s)encoders of 'base' .*loss.kd_weight: there 10.0, here 1.0"):
        run(workdir, methods=("base",), loss__kd_weight=1.0)
    results = run(workdir, methods=("efc",), loss__kd_weight=1.0)
    assert done == {"trained": [], "streamed": []}
    assert set(results["scores"]) == {"efc"}, (
        "rows of encoders that were trained with other options leave the table"
    )
    assert set(run(workdir, methods=("efc",))["scores"]) == {"efc"}


def test_overwrite_replaces_the_encoders_that_differ_and_no_others(workdir, done):
    before = {path.name: path.read_bytes() for path in (workdir / "checkpoints" / "efc").glob("*.json")}
    results = run(workdir, methods=("base",), overwrite=True, loss__kd_weight=1.0)
    assert done["trained"] == [0, 1]
    assert done["streamed"] == ["base"], (
        "the first task has no distillation: same encoder, same digest, same outcome"
    )
    assert {path.name: path.read_bytes() for path in (workdir / "checkpoints" / "efc").glob("*.json")} == before
    assert set(results["scores"]) == {"base", "efc"}, "rose and projector were scored on encoders that are gone"
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [(line["objective"], line["task"]) for line in lines if line["step"] == line["steps"]] == [
        ("efc", 0),
        ("efc", 1),
        ("base", 0),
        ("base", 1),
    ]


def test_evolution_options_stream_evolving_rows_anew_and_no_others(workdir, done):
    run(workdir, evolution__alpha=0.05)
    assert done == {"trained": [], "streamed": ["rose", "rose"]}


def test_digests_follow_the_options_that_a_row_reads():
    plain = small_config()

    def changed(row, **changes):
        found = resolve([row])[row]
        return scoring_digest(small_config(**changes), found) != scoring_digest(plain, found)

    assert changed("rose", evolution__alpha=0.1)
    assert not changed("ldc", evolution__alpha=0.1)
    assert not changed("base", evolution__alpha=0.1)
    assert changed("ldc", ldc__epochs=3)
    assert not changed("rose", ldc__epochs=3)
    assert changed("rose_whitened", metric__ridge=0.1)
    assert not changed("rose", metric__ridge=0.1)
    assert changed("gd_oracle", evolution__gd_lr=0.1)
    assert not changed("gd_oracle", evolution__alpha=0.1)
    assert changed("fecam", fecam__alpha1=0.5)
    assert changed("fecam_1", fecam__scatter="within")
    assert changed("fetril", fetril__nearest="cosine")
    assert not changed("fetril_fc", fetril__nearest="cosine")
    assert not changed("fetril", fecam__alpha1=0.5)
    assert changed("batch_norm", testtime__batch_size=8)
    assert not changed("base", testtime__batch_size=8)
    assert not changed("rose", loss__kd_weight=1.0), "what trains an encoder is in the digest of the encoder"


def test_a_trajectory_knows_its_own_options():
    for name in {row.objective for row in METHODS.values()}:
        keys = trajectory_options(small_config(), name)
        section = {"pass": "pass_"}.get(name, name)
        assert (f"{section}.recipe.batch_size" in keys) == (
            name in ("efc", "fcs", "pass", "il2a", "frozen", "ssre")
        )
        assert ("loss.kd_weight" in keys) == (name in ("base", "base_rotation", "base_simclr", "lwf"))
        assert not any(key.startswith(("evolution", "metric", "test.")) for key in keys)
        assert "train.log_every" not in keys, "it changes no number"
    keys = trajectory_options(small_config(), "ssre")
    assert {"pass_.temperature", "pass_.recipe.first.lr", "pass_.augment"} <= set(keys), "its first task is PASS's"
    assert not {"pass_.distill_weight", "pass_.recipe.later.lr"} & set(keys)


def train_otherwise(monkeypatch):
    """From other weights, as other code might."""
    real = trajectory.make_begin
    other = lambda begin: lambda prev, task: begin(prev, task._replace(seed=task.seed + 1))  # noqa: E731
    monkeypatch.setattr(trajectory, "make_begin", lambda objective: other(real(objective)))


def test_encoders_trained_anew_never_meet_old_scores(workdir, done, monkeypatch):
    """Checkpoints deleted, then retrained by other code: what stands in for it is another seed of the weights."""
    shutil.rmtree(workdir / "checkpoints" / "base")
    train_otherwise(monkeypatch)
    run(workdir, methods=("base",))
    assert done["trained"] == [0, 1]
    assert done["streamed"] == ["base", "base"]
    scores = json.loads((workdir / "results.json").read_text())["scores"]
    assert set(scores) == {"base", "efc"}, "rose was scored on encoders that are gone"
    means = [path.name for path in (workdir / "scores").glob("base_true_means_*.npz")]
    assert len(means) == 2, "true means carry the digest of their encoders"


def test_the_same_encoders_trained_again_find_their_scores(workdir, done):
    shutil.rmtree(workdir / "checkpoints" / "base")
    run(workdir)
    assert done["trained"] == [0, 1]
    assert done["streamed"] == [], "the same bits have the same name"


def test_one_outcome_file_per_row_stage_and_options(workdir, monkeypatch):
    shutil.rmtree(workdir / "checkpoints" / "base")
    train_otherwise(monkeypatch)
    run(workdir)
    assert len(list((workdir / "scores").glob("rose_*_stage_001.npz"))) == 1, (
        "of encoders that are gone none stays"
    )


def test_a_workdir_of_the_version_before_is_refused(workdir):
    path = workdir / "config.json"
    saved = json.loads(path.read_text())
    del saved["layout"]
    path.write_text(json.dumps(saved))
    with pytest.raises(UserError, match="made by another version of rose_jax"):
        run(workdir)
    assert (workdir / "results.json").exists(), "nothing was touched"
    run(workdir, methods=("base",), overwrite=True)
    assert json.loads(path.read_text())["layout"] == 2


def test_what_all_trajectories_share_refuses_the_workdir(workdir):
    with pytest.raises(UserError, match=r"another config:\n  model.width: there 1, here 2"):
        run(workdir, model__width=2)


def test_studies_open_a_trajectory_with_the_options_it_was_trained_with(workdir):
    run(workdir, methods=("efc",), loss__kd_weight=1.0, train__momentum=0.9)
    with experiment.open_run(workdir, layout=Layout(jax.devices()[:1])) as opened:
        assert opened.config.loss.kd_weight == 1.0
        assert opened.trajectory("base").parts.config.loss.kd_weight == 10.0
        assert opened.objectives() == ["base", "efc"]


def test_budgeted_evolution_spends_a_quarter_on_the_old_encoder(workdir, monkeypatch):
    """With k = 4 every fourth image passes f_{t-1}; another row that needs all of them shares what there is."""
    from rose_jax.run.features import Features

    passed, real = [], Features.encode

    def encode(self, variables, split, indices, *rest):
        if split == "test":
            passed.append(len(indices))
        return real(self, variables, split, indices, *rest)

    monkeypatch.setattr(Features, "encode", encode)
    first = run(workdir, methods=("rose",), evolution__evolve_every=4)
    stream = len(np.load(next((workdir / "scores").glob("rose_*_stage_001.npz")))["predictions"])
    assert sorted(passed) == [-(-stream // 4), stream // 2, stream, stream], (
        "f_0 at stage 0; f_1 of all and f_0 of a quarter at stage 1; f_1 of those that the plane shows"
    )
    assert first["scores"]["rose"]["ms_per_image"] > 0
