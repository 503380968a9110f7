"""scripts/tpu_vm.sh: the commands that --dry_run prints, and what a stand-in for gcloud and its VM receives."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "tpu_vm.sh"
VM = ("--name", "rose", "--zone", "us-central2-b")
AWKWARD = '--config.note=it\'s $HOME; "a  b" & `c` \\ *'

# ssh runs the command in the folder $VM_HOME as the worker's shell would; scp copies out of and into it.
FAKE_GCLOUD = """\
import os, shutil, subprocess, sys
verb, words = sys.argv[4], sys.argv[5:]
home = os.environ["VM_HOME"]
options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
print(verb, options["worker"], flush=True)
if verb == "ssh":
    sys.exit(subprocess.run(["bash", "-c", options["command"]], cwd=home).returncode)
paths = [os.path.join(home, w.split(":")[1]) if ":" in w else w for w in words if not w.startswith("--")]
shutil.copy(*paths)
"""


def call(*arguments, script=SCRIPT, **environment):
    env = os.environ | {key: str(value) for key, value in environment.items()}
    return subprocess.run([str(script), *arguments], capture_output=True, text=True, env=env, timeout=60)


def dry(*arguments) -> list[list[str]]:
    """The commands as words, read back by another parser than the shell that wrote them."""
    result = call(*arguments, "--dry_run") if "--" not in arguments else call(*_before_dashes(arguments))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert all(line.startswith("+ ") for line in lines)
    return [shlex.split(line[2:]) for line in lines]


def _before_dashes(arguments):
    at = arguments.index("--")
    return (*arguments[:at], "--dry_run", *arguments[at:])


def gcloud(verb, *rest):
    return ["gcloud", "compute", "tpus", "tpu-vm", verb, *rest]


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        ("v4-8", "tpu-ubuntu2204-base"),
        ("v5litepod-8", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_create_knows_the_runtime_of_each_type(kind, runtime):
    assert dry("create", *VM, "--accelerator_type", kind) == [
        gcloud("create", "rose", f"--accelerator-type={kind}", f"--version={runtime}", "--zone=us-central2-b")
    ]


def test_create_takes_every_option_in_both_spellings():
    (command,) = dry(
        "create", "--name=rose", "--zone=us-central2-b", "--project=p-1", "--runtime_version", "r-1", "--spot"
    )
    assert command[5:] == [
        *("rose", "--accelerator-type=v4-8", "--version=r-1", "--spot", "--zone=us-central2-b"),
        "--project=p-1",
    ]


def test_setup_packs_copies_and_installs_on_all_workers(tmp_path):
    data = tmp_path / "my data"
    data.mkdir()
    commands = dry("setup", *VM, "--data", str(data), "--nfs", "10.0.0.2:/share")
    assert commands[2] == gcloud("scp", "build/rose_jax.tar.gz", "rose:", "--worker=all", "--zone=us-central2-b")
    assert ["tar", "-czf", "build/rose_jax_data.tar.gz", "-C", str(data), "."] in commands
    remote = [c for c in commands if "ssh" in c]
    assert len(remote) == 3
    assert all("--worker=all" in c for c in remote)
    assert "--constraint requirements.lock --editable '.[tpu,gcs]'" in remote[0][7]
    assert "mount -t nfs -o hard 10.0.0.2:/share /mnt/rose_jax" in remote[2][7]


def test_run_starts_the_same_distributed_command_on_all_workers():
    (command,) = dry("run", *VM, "--project", "p", "--", "--config", "configs/cifar100_cold10.py", AWKWARD)
    assert command[5:7] == ["rose", "--worker=all"]
    assert command[8:] == ["--zone=us-central2-b", "--project=p"]
    remote = shlex.split(command[7].removeprefix("--command="))
    assert remote[:4] == ["cd", "rose_jax", "&&", "exec"]
    assert remote[4:] == [
        *(".venv/bin/python", "-m", "rose_jax.main", "--config", "configs/cifar100_cold10.py"),
        *(AWKWARD, "--distributed"),
    ]


def test_a_mirror_is_an_argument_of_the_run_and_a_sweep_is_on_one_worker():
    given = ("--mirror", "gs://my-bucket/my runs", "--", "--config", "x.py")
    for command, worker, words in (
        ("run", "all", ["rose_jax.main", "--config", "x.py", "--distributed"]),
        ("sweep", "0", ["rose_jax.sweep", "--config", "x.py"]),
    ):
        (found,) = dry(command, *VM, *given)
        assert found[6] == f"--worker={worker}"
        remote = shlex.split(found[7].removeprefix("--command="))
        assert remote[5:] == ["-m", *words, "--mirror=gs://my-bucket/my runs"]


def test_fetch_logs_stop_and_delete():
    fetch = dry("fetch", *VM, "--run", "x_seed0", "--from", "/mnt/rose_jax/runs")
    assert fetch[0][5:8] == [
        "rose",
        "--worker=0",
        "--command=tar -czf rose_jax_results.tar.gz --exclude=checkpoints -C /mnt/rose_jax/runs x_seed0",
    ]
    assert fetch[2][4:7] == ["scp", "rose:rose_jax_results.tar.gz", "build/rose_jax_results.tar.gz"]
    assert "--exclude" not in str(dry("fetch", *VM, "--run", "x", "--with_checkpoints"))
    assert dry("logs", *VM)[0][6] == "--worker=0"
    assert dry("stop", *VM)[0][6] == "--worker=all"
    assert dry("delete", *VM) == [gcloud("delete", "rose", "--zone=us-central2-b")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("destroy",), "unknown command 'destroy'. Commands: create, setup"),
        (("create",), "--name is missing"),
        (("create", "--name", "Rose_1", "--zone", "us-central2-b"), "--name 'Rose_1' must be lower-case"),
        (("create", "--name", "rose"), "--zone is missing"),
        (("create", "--name", "rose", "--zone", "us"), "--zone 'us' does not look like us-central2-b"),
        (("create", "--name", "--zone"), "--name needs a value"),
        (("create", *VM, "--accelerator_type", "v5e-8"), "called v5litepod-8 by gcloud"),
        (("create", *VM, "--accelerator_type", "a100"), "does not look like v4-8"),
        (("create", *VM, "--accelerator_type", "v9-8"), "give --runtime_version"),
        (("create", *VM, "--sopt"), "unknown option '--sopt'"),
        (("create", *VM, "--", "--config", "x"), "belong to 'run' and 'sweep'"),
        (("create", *VM, "--mirror", "gs://x"), "--mirror belongs to 'run' and 'sweep'"),
        (("run", *VM, "--mirror", "bucket", "--", "--config", "x"), "does not look like gs://BUCKET/FOLDER"),
        (("sweep", *VM), "nothing to run"),
        (("setup", *VM, "--data", "no/such"), "--data 'no/such' is not a folder"),
        (("setup", *VM, "--nfs", "share"), "does not look like HOST:/SHARE"),
        (("run", *VM), "nothing to run"),
        (("fetch", *VM, "--run", "runs/x"), "without slashes"),
    ],
)
def test_bad_input_is_one_message_and_no_command(arguments, message):
    result = call(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_usage_names_every_command():
    result = call("--help")
    assert result.returncode == 0
    for command in ("create", "setup", "run", "sweep", "logs", "stop", "fetch", "delete"):
        assert f"\n  {command} " in result.stdout


@pytest.fixture
def vm(tmp_path):
    """The script in its own folder, a gcloud that acts on a local folder, a python that writes its argv."""
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "scripts")
    home, bin_ = tmp_path / "vm", tmp_path / "bin"
    python = home / "rose_jax" / ".venv" / "bin" / "python"
    for path, text in (
        (bin_ / "gcloud.py", FAKE_GCLOUD),
        (bin_ / "gcloud", f'#!/bin/sh\nexec {sys.executable} {bin_}/gcloud.py "$@"\n'),
        (python, '#!/bin/sh\nprintf "%s\\n" "$@" > argv\nexec sleep ${NAP:-0}\n'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "VM_HOME": home}
    return home, lambda *arguments, **more: call(*arguments, script=script, **environment, **more)


def test_arguments_arrive_as_they_were_given(vm):
    home, tpu_vm = vm
    result = tpu_vm("run", *VM, "--", "--config", "configs/x.py", AWKWARD)
    assert result.returncode == 0, result.stderr
    argv = (home / "rose_jax" / "argv").read_text().splitlines()
    assert argv == ["-m", "rose_jax.main", "--config", "configs/x.py", AWKWARD, "--distributed"]


def test_a_detached_run_returns_at_once_and_is_what_stop_ends(vm):
    home, tpu_vm = vm
    begun = time.monotonic()
    assert tpu_vm("run", *VM, "--detach", "--", "--config", "x.py", AWKWARD, NAP="50").returncode == 0
    assert time.monotonic() - begun < 30
    argv = home / "rose_jax" / "argv"
    while not argv.exists() or "--distributed" not in argv.read_text():
        time.sleep(0.05)
    assert argv.read_text().splitlines()[-2] == AWKWARD
    pid = int((home / "rose_jax" / "run.pid").read_text())
    try:
        second = tpu_vm("run", *VM, "--detach", "--", "--config", "y.py")
        assert second.returncode != 0
        assert "a run is going on here already" in second.stderr
        assert int((home / "rose_jax" / "run.pid").read_text()) == pid
        assert tpu_vm("stop", *VM).returncode == 0
        for _ in range(200):
            if not _alive(pid):
                break
            time.sleep(0.05)
        assert not _alive(pid)
    finally:
        if _alive(pid):
            os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_fetched_results_lie_in_runs_without_the_checkpoints(vm, tmp_path):
    home, tpu_vm = vm
    run = home / "rose_jax" / "runs" / "x_seed0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "results.json").write_text("{}")
    assert tpu_vm("fetch", *VM, "--run", "x_seed0").returncode == 0
    assert [path.name for path in (tmp_path / "runs" / "x_seed0").iterdir()] == ["results.json"]


def test_fetch_finds_the_run_that_was_started_last(vm, tmp_path):
    home, tpu_vm = vm
    for age, run in enumerate(("b_evolution.alpha=0.02_seed0", "a_seed0", "c_seed0")):
        config = home / "rose_jax" / "runs" / run / "config.json"
        config.parent.mkdir(parents=True)
        config.write_text("{}")
        os.utime(config, (1000 - age, 1000 - age))
    (home / "rose_jax" / "runs" / "not a run").mkdir()
    result = tpu_vm("fetch", *VM)
    assert result.returncode == 0, result.stderr
    assert "fetching rose_jax/runs/b_evolution.alpha=0.02_seed0" in result.stdout
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["b_evolution.alpha=0.02_seed0"]
    elsewhere = home / "my share"
    (elsewhere / "x").mkdir(parents=True)
    (elsewhere / "x" / "config.json").write_text("{}")
    assert tpu_vm("fetch", *VM, "--from", str(elsewhere)).returncode == 0
    assert (tmp_path / "runs" / "x" / "config.json").exists()


def test_fetch_where_there_is_no_run(vm):
    _, tpu_vm = vm
    result = tpu_vm("fetch", *VM)
    assert result.returncode != 0
    assert "error: no run in rose_jax/runs: run something first, or give --from" in result.stderr
    assert "scp" not in result.stdout


def test_a_command_that_fails_ends_the_script(vm):
    _, tpu_vm = vm
    result = tpu_vm("fetch", *VM, "--run", "absent")
    assert result.returncode != 0
    assert "scp" not in result.stdout
