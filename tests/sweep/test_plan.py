"""Which runs a sweep consists of, each as the ordinary command would make it."""

from pathlib import Path

import pytest
from support import call_main

from rose_jax import experiment
from rose_jax.errors import UserError
from rose_jax.sweep.plan import make_plan, out_folder, read, seeds_of

DIGITS = "configs/digits_cold5.py"


def test_every_config_with_every_value_and_every_seed():
    runs = make_plan(
        [DIGITS, "configs/folder.py"], [0, 7], ["evolution.alpha=0.02,0.2", "train.first.milestones=(3,5),()"]
    )
    assert len(runs) == len({run.workdir for run in runs}) == 2 * 2 * 2 * 2
    assert [run.name for run in runs[:3]] == [
        "digits_cold5_train.first.milestones=3,5_evolution.alpha=0.02_seed0",
        "digits_cold5_train.first.milestones=3,5_evolution.alpha=0.02_seed7",
        "digits_cold5_train.first.milestones=none_evolution.alpha=0.02_seed0",
    ]
    assert runs[0].arguments == (
        *("--config", DIGITS, "--config.evolution.alpha=0.02", "--config.train.first.milestones=(3,5)"),
        "--config.seed=0",
    )


def test_workdirs_and_configs_are_those_of_the_command_alone(monkeypatch):
    started = []
    monkeypatch.setattr(experiment, "run", lambda config, workdir, **rest: started.append((config, Path(workdir))))
    others = ["--config.model.width=4", "--config.data.decode_workers=1"]
    runs = make_plan(
        [DIGITS, "configs/cifar100_cold10.py:thin"], [3], ["lwf.expand_labels=True,False"], others, "base,lwf+rose"
    )
    for run in runs:
        call_main(*run.arguments)
    assert [workdir for _, workdir in started] == [run.workdir for run in runs]
    assert [config for config, _ in started] == [read(run.arguments)[0] for run in runs]
    assert all(config.methods == ("base", "lwf+rose") and config.seed == 3 for config, _ in started)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(configs=["configs/no.py"]), "There is no config file configs/no.py"),
        (dict(configs=[DIGITS], seeds=[2**40]), "config.seed is 1099511627776; it must be a whole number"),
        (dict(configs=[DIGITS], sets=["evolution.alpha"]), "is not of the form KEY=VALUE,VALUE"),
        (dict(configs=[DIGITS], sets=["evolution.alfa=1"]), "Unknown config key 'evolution.alfa'"),
        (dict(configs=[DIGITS], sets=["evolution.alpha=0.1,-2"]), "config.evolution.alpha is -2.0; it must be"),
        (dict(configs=[DIGITS], sets=["evolution.alpha=0.1,x"]), "config.evolution.alpha is 'x'; it must be"),
        (dict(configs=[DIGITS], sets=["seed=1,2"], seeds=[0]), "seed is given twice"),
        (
            dict(configs=[DIGITS], sets=["adc.alpha=1"], others=["--config.adc.alpha=2"]),
            "adc.alpha is given twice",
        ),
        (dict(configs=[DIGITS], sets=["data.decode_workers=1,2"]), "Two runs would share the workdir"),
        (dict(configs=[DIGITS, DIGITS]), "Two runs would share the workdir"),
        (dict(configs=[DIGITS], seeds=[1, 1]), "Two runs would share the workdir"),
    ],
)
def test_what_is_not_allowed(arguments, words):
    with pytest.raises(UserError, match=words):
        make_plan(**arguments)


def test_seeds():
    assert seeds_of("0,3,12") == [0, 3, 12]
    for text in ("0,", "a", "1 2", "-1"):
        with pytest.raises(UserError, match="is not a list of whole numbers"):
            seeds_of(text)


def test_the_folder_of_the_report():
    found = out_folder([DIGITS, "configs/tiny_cold10.py:thin"], [0, 1], ["evolution.alpha=0.02,0.2"])
    assert found == Path("runs/sweep_digits_cold5_tiny_cold10thin_evolution.alpha=0.02,0.2_seeds=0,1")
    assert len(out_folder([DIGITS], list(range(500)), []).name) < 200


def test_a_sweep_with_another_option_does_not_share_the_folder():
    plain = out_folder([DIGITS], [0, 1], [])
    changed = out_folder([DIGITS], [0, 1], [], ["--config.metric.source=queue"])
    assert plain == Path("runs/sweep_digits_cold5_seeds=0,1")
    assert changed == Path("runs/sweep_digits_cold5_metric.source=queue_seeds=0,1")
