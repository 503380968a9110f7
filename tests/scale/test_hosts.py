"""Two processes with two devices each, on loopback, against one process with four."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from support import snapshot_arrays

from rose_jax import hosts
from rose_jax.errors import UserError

RUN = [
    "--config",
    "configs/digits_cold5.py",
    "--config.model.width=1",
    "--config.model.compute_dtype=float64",
    "--config.scenario.task_sizes=(5,5)",
    "--config.train.batch_size=62",
    "--config.train.first.milestones=()",
    "--config.train.later.milestones=()",
    "--methods=rose",
]


def launch(arguments, devices, folder, coordinator="", process=-1, processes=2):
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "NPROC": "16",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / f"compiled{process}"),
    }
    command = [sys.executable, "-m", "rose_jax.main", *arguments]
    if coordinator:
        command += ["--distributed", f"--coordinator={coordinator}"]
        command += [f"--num_processes={processes}", f"--process_id={process}"]
    log = (folder / f"log{process}").open("w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def steps_logged(workdir):
    """Lines up to the newest checkpoint: a resumed run must keep them as they are."""
    names = (workdir / "checkpoints" / "base").glob("task_000_step_*.manifest.json")
    newest = max(int(path.name.split("_")[-1].split(".")[0]) for path in names)
    lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [(line["task"], line["step"], line["loss"]) for line in lines if line["step"] <= newest]


def logs(folder):
    return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in folder.glob("log*"))


def run_pair(arguments, folder):
    address = free_address()
    pair = [launch(arguments, 2, folder, address, process) for process in (0, 1)]
    codes = [process.wait(400) for process in pair]
    assert codes == [0, 0], logs(folder)


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    arguments = [*RUN, "--config.train.first.epochs=1", "--config.train.later.epochs=1"]
    one = launch([*arguments, "--workdir", str(tmp_path / "one")], 4, tmp_path)
    assert one.wait(400) == 0, logs(tmp_path)
    run_pair([*arguments, "--workdir", str(tmp_path / "two")], tmp_path)
    for stage in ("stage_000", "stage_001"):
        a = snapshot_arrays(tmp_path / "one" / "checkpoints" / "base" / stage)
        b = snapshot_arrays(tmp_path / "two" / "checkpoints" / "base" / stage)
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_allclose(a[key], b[key], rtol=1e-6, atol=1e-8, err_msg=f"{stage} {key}")
    (last,) = (tmp_path / "one" / "scores").glob("rose_*_stage_001.npz")
    with np.load(last) as a, np.load(tmp_path / "two" / "scores" / last.name) as b:
        assert np.mean(a["predictions"] == b["predictions"]) >= 0.995
    assert (tmp_path / "two" / "results.json").exists()


@pytest.mark.slow
def test_a_dead_host_ends_the_others_and_a_restart_resumes(tmp_path):
    arguments = [*RUN, "--config.train.first.epochs=300", "--config.train.later.epochs=1"]
    arguments += ["--config.train.checkpoint_every=20", "--workdir", str(tmp_path / "run")]
    address = free_address()
    pair = [launch(arguments, 2, tmp_path, address, process) for process in (0, 1)]
    steps = tmp_path / "run" / "checkpoints" / "base"
    deadline = time.monotonic() + 300
    while not list(steps.glob("task_000_step_*.manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.5)
    pair[1].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    assert pair[0].wait(125) != 0, logs(tmp_path)
    assert time.monotonic() - begun < 120
    last = max(int(path.name.split("_")[-1].split(".")[0]) for path in steps.glob("task_000_step_*.manifest.json"))
    assert last >= 20
    before = steps_logged(tmp_path / "run")
    run_pair(arguments, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    after = [(line["task"], line["step"], line["loss"]) for line in lines]
    assert after[: len(before)] == before, "it went on from the checkpoint"


@pytest.mark.slow
def test_a_dead_coordinator_ends_the_others(tmp_path):
    """Process 0 runs the service by which the rest notice deaths, its own included."""
    arguments = [*RUN, "--config.train.first.epochs=300", "--workdir", str(tmp_path / "run")]
    address = free_address()
    pair = [launch(arguments, 2, tmp_path, address, process) for process in (0, 1)]
    deadline = time.monotonic() + 300
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    pair[0].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    assert pair[1].wait(125) != 0, logs(tmp_path)
    assert time.monotonic() - begun < 120
    assert pair[0].wait() == -signal.SIGKILL, "it was running until it was killed"


@pytest.mark.slow
def test_a_preemption_notice_stops_all_hosts_at_one_step(tmp_path):
    arguments = [*RUN, "--config.train.first.epochs=300", "--config.train.later.epochs=1"]
    arguments += ["--workdir", str(tmp_path / "run")]
    address = free_address()
    pair = [launch(arguments, 2, tmp_path, address, process) for process in (0, 1)]
    deadline = time.monotonic() + 300
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    pair[1].send_signal(signal.SIGTERM)
    assert [process.wait(120) for process in pair] == [75, 75], logs(tmp_path)
    stopped = {line for line in logs(tmp_path).splitlines() if "stopped at step" in line}
    assert len(stopped) == 1, stopped
    assert len(list((tmp_path / "run" / "checkpoints" / "base").glob("task_000_step_*.manifest.json"))) >= 1
    run_pair(arguments, tmp_path)


@pytest.mark.slow
def test_two_workdirs_are_refused(tmp_path):
    """Each process with a folder of its own, as on hosts that share no file system."""
    address = free_address()
    pair = [
        launch([*RUN, "--workdir", str(tmp_path / f"run{process}")], 2, tmp_path, address, process)
        for process in (0, 1)
    ]
    assert [process.wait(400) for process in pair] == [2, 2], logs(tmp_path)
    for process in (0, 1):
        assert "is not the same folder on every host" in (tmp_path / f"log{process}").read_text()


@pytest.mark.parametrize(("index", "there"), [(0, True), (1, False)])
def test_every_process_refuses_a_workdir_that_one_does_not_see(index, there, tmp_path, monkeypatch):
    """Process 0 sees the file that it wrote; what process 1 sees decides for both."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(hosts, "barrier", lambda name: None)
    monkeypatch.setattr(hosts.multihost_utils, "broadcast_one_to_all", lambda value: value)
    seen = []

    def gather(value):
        seen.append(bool(value))
        return np.array([1, 0])

    monkeypatch.setattr(hosts.multihost_utils, "process_allgather", gather)
    with pytest.raises(UserError, match=f"{tmp_path} is not the same folder on every host. Put it on a shared"):
        hosts.check_shared(tmp_path)
    assert seen == [there]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize("process", [0, 1])
def test_processes_that_do_not_find_each_other(process):
    """Each alone, and soon tired of waiting."""
    address = free_address()
    wait = f"from rose_jax import hosts; hosts.START_SECONDS = 2; hosts.start({address!r}, 2, {process})"
    done = subprocess.run([sys.executable, "-c", wait], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    words = f"error: The processes did not find each other within 2 s (2 processes were to meet at {address})"
    assert words in done.stderr
    assert "Check failure" not in done.stderr, "jax would abort with a stack trace"


def test_without_a_cluster_the_processes_must_be_named(tmp_path):
    run = ["--config", "configs/digits_cold5.py", "--workdir", str(tmp_path), "--distributed"]
    command = [sys.executable, "-m", "rose_jax.main", *run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "error: The processes did not find each other: coordinator_address should be defined" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("127.0.0.1:1",), "--num_processes N and --process_id I belong together"),
        (("127.0.0.1:1", 2, 2), "--process_id 2 is not below --num_processes 2"),
        (("here", 2, 1), "--coordinator 'here' is not of the form host:port"),
    ],
)
def test_flags_that_do_not_fit(flags, words):
    with pytest.raises(UserError, match=words):
        hosts.start(*flags)
