"""The command line of a sweep: what it refuses before anything starts, and what it says at the end."""

import dataclasses
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import unpainted

from rose_jax.errors import UserError
from rose_jax.sweep import __main__ as command
from rose_jax.sweep import survey
from rose_jax.sweep.plan import make_plan

# Stands for the ordinary command: a finished run of another seed, or a failure.
RUN = """\
import json, pathlib, shutil, sys
seed = int(next(word for word in sys.argv if word.startswith("--config.seed=")).partition("=")[2])
if seed == 2:
    sys.exit("this seed fails")
folder = pathlib.Path(f"runs/digits_cold5_seed{seed}")
shutil.copytree("finished", folder)
results = json.loads((folder / "results.json").read_text())
results["setting"]["seed"] = seed
results["scores"]["rose"]["last"] = 50.0 + 10 * seed
(folder / "results.json").write_text(json.dumps(results))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path.cwd() / 'tests'}")
    (tmp_path / "tiny.py").write_text("from tiny_run import get_config")
    monkeypatch.chdir(tmp_path)
    # In this process, which has jax already.
    monkeypatch.setattr(survey, "ask", lambda runs: dataclasses.replace(survey.answer(runs), devices=1))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "0,b"], "error: --seeds '0,b' is not a list of whole numbers"),
        (["--set", "evolution.alpha=0.1,-1"], "error: config.evolution.alpha is -1.0"),
        (["--methods", "base,rosse"], "error: Unknown method 'rosse'. Did you mean 'rose'"),
        (["--set", "data.dataset=digits,tiny", "--config.data.dir=nowhere"], "error: tiny is not prepared"),
        (["--set", "scenario.tasks=5,11", "--config.scenario.task_sizes=()"], "error: "),
        (["--mirror", "gg://x"], "error: --mirror gg://x"),
        (["--workdir", "x"], "error: Unexpected argument '--workdir'"),
        (["--parallel", "-1"], "error: --parallel -1"),
        (["--ray", "auto"], "error: --ray needs the package ray"),
    ],
)
def test_what_cannot_run_fails_once_before_any_child_starts(here, arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(command, "Local", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command.main(["--config", "tiny.py", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(words)
    assert said.count("error: ") == 1
    assert [path.name for path in here.iterdir()] == ["tiny.py"]


def test_one_table_and_one_figure_and_the_failed_run_named(here, finished, capsys, monkeypatch):
    shutil.copytree(finished[0], here / "finished")
    (here / "run.py").write_text(RUN)
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "run.py"))
    with unpainted():
        assert command.main(["--config", "tiny.py", "--seeds", "0,1,2,3"]) == 1
    out, said = capsys.readouterr()
    # By hand: 50, 60 and 80 have the mean 63.33 and the deviation 15.28.
    row = next(line for line in out.splitlines() if line.startswith("rose"))
    assert row.split()[1:4] == ["63.33", "±", "15.28"]
    assert "Mean ± sample deviation over 3 runs (seeds 0, 1, 3)." in out
    folder = here / "runs/sweep_tiny_seeds=0,1,2,3"
    assert f"Figure: {folder.relative_to(here)}/figures/curves.png" in out
    assert (folder / "report.html").exists()
    assert "FAILED: runs/digits_cold5_seed2, exit code 1. The end of runs/sweep_tiny_seeds=0,1,2,3/" in said
    assert "    this seed fails\n" in said
    assert "1 of 4 runs failed; the same command tries them again" in said


def test_options_of_the_ordinary_command_are_handed_on(here, monkeypatch):
    given = []

    class Stopped(Exception):
        pass

    def executor(options, runs, more):
        given.append(list(more))
        raise Stopped

    monkeypatch.setattr(command, "_executor", executor)
    for arguments in ([], ["--nodeterministic", "--overwrite", "--writers=tensorboard"]):
        with pytest.raises(Stopped):
            command.main(["--config", "tiny.py", *arguments])
    assert given == [[], ["--writers=tensorboard", "--overwrite", "--nodeterministic"]]


def test_runs_that_differ_in_scoring_alone_need_the_same_encoders(here):
    def trainings(*arguments, **rest):
        runs = make_plan(*arguments, **rest)
        return survey.answer([run.arguments for run in runs])

    found = trainings(["tiny.py"], [0, 1], ["evolution.alpha=0.02,0.1"], methods="base,rose,lwf")
    seeds = [set(names) for names in found.trainings]
    assert seeds[0] == seeds[2] != seeds[1] == seeds[3]
    assert len(seeds[0]) == 2, "one of each objective"
    assert len(set(found.programs)) == 1
    found = trainings(["tiny.py"], [0], ["lwf.expand_labels=True,False"], methods="base,lwf")
    assert len(set(found.trainings[0]) & set(found.trainings[1])) == 1, "base is one training, lwf two"
    found = trainings(["tiny.py"], [0], ["model.width=2,4"])
    assert len(set(found.programs)) == 2


def test_the_survey_in_its_own_process(here, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path.cwd() / 'tests'}")
    monkeypatch.chdir(here)
    found = survey.ask([["--config", "tiny.py"]])
    assert (found.platform, found.devices, len(found.trainings), len(found.programs)) == ("cpu", 8, 1, 1)
    # What it prints in that process, and what is made of it here.
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps([["--config", "tiny.py", "--methods=x"]])))
    code, said = survey.main(), "a warning of jax's\n" + capsys.readouterr().err
    monkeypatch.setattr(
        survey.subprocess, "run", lambda *args, **rest: SimpleNamespace(returncode=code, stderr=said)
    )
    with pytest.raises(UserError, match=r"^Unknown method 'x'\..*_ridge\.$"):
        survey.ask([])
