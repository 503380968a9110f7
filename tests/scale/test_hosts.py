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

from configs.digits_cold5 import get_config
from rose_jax.errors import UserError
from rose_jax.runtime import hosts
from rose_jax.runtime.workdir import Workdir

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


STEPS = 110  # of the first task in a run that is interrupted
INTERRUPTED = [
    *RUN,
    "--config.train.first.epochs=10",
    "--config.train.later.epochs=1",
    "--config.train.log_every=2",
    "--config.train.checkpoint_every=4",
]


@pytest.fixture
def launch(tmp_path):
    """Starts a process with so many devices; `process` of two if it is given. Its output goes to logPROCESS."""
    started = []

    def start(arguments, devices, address="", process=-1):
        environment = os.environ | {
            "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}"),
            "NPROC": "16",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_X64": "0" if "--config.model.compute_dtype=float32" in arguments else "1",
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / f"compiled{process}"),
        }
        command = [sys.executable, "-m", "rose_jax.main", *arguments]
        if address:
            command += [f"--coordinator={address}", "--num_processes=2", f"--process_id={process}"]
        with (tmp_path / f"log{process}").open("w") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    yield start
    for process in started:
        process.kill()  # no harm to one that has ended
        process.wait()


@pytest.fixture
def launch_pair(launch):
    def start(arguments):
        address = free_address()
        return [launch(arguments, 2, address, process) for process in (0, 1)]

    return start


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def assert_ends(pair, codes, folder):
    assert [process.wait(900) for process in pair] == codes, logs(folder)


def logs(folder):
    return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("log*")))


def await_checkpoint(workdir, pair):
    """Returns as soon as the run has saved something, and is still running."""
    deadline = time.monotonic() + 600
    while not saved_steps(workdir):
        assert time.monotonic() < deadline, logs(workdir.parent)
        assert [process.poll() for process in pair] == [None, None], logs(workdir.parent)
        time.sleep(0.1)


def saved_steps(workdir):
    names = (workdir / "checkpoints" / "base").glob("task_000_step_*.manifest.json")
    return sorted(int(path.name.split("_")[-1].split(".")[0]) for path in names)


def logged(workdir):
    lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [(line["task"], line["step"], line["loss"]) for line in lines]


def assert_went_on(workdir, newest, before):
    """After a restart: what was logged up to the newest checkpoint is as it was, and the rest is whole."""
    kept, after = [line for line in before if line[1] <= newest], logged(workdir)
    assert kept
    assert after[: len(kept)] == kept
    assert [step for task, step, _ in after if task == 0] == list(range(2, STEPS + 1, 2))
    assert (workdir / "results.json").exists()


def assert_runs_agree(one, two, objective, row, tolerance):
    """Snapshots to `tolerance` (what is kept in float32 to its rounding), predictions on 99.5 % of the images."""
    stages = sorted(path.name for path in (one / "checkpoints" / objective).glob("stage_???"))
    assert len(stages) == 2
    for stage in stages:
        a, b = (snapshot_arrays(folder / "checkpoints" / objective / stage) for folder in (one, two))
        assert a.keys() == b.keys()
        for key in a:
            near = tolerance if a[key].dtype == np.float64 else max(tolerance, 2e-6)
            np.testing.assert_allclose(a[key], b[key], rtol=near, atol=near, err_msg=f"{stage} {key}")
    (last,) = (one / "scores").glob(f"{row}_*_stage_001.npz")
    with np.load(last) as a, np.load(two / "scores" / last.name) as b:
        assert np.mean(a["predictions"] == b["predictions"]) >= 0.995
    assert (two / "results.json").exists()


def run_one_and_two(arguments, folder, launch, launch_pair):
    one = launch([*arguments, "--workdir", str(folder / "one")], 4)
    assert one.wait(900) == 0, logs(folder)
    assert_ends(launch_pair([*arguments, "--workdir", str(folder / "two")]), [0, 0], folder)


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path, launch, launch_pair):
    """Whole tasks in float64."""
    arguments = [*RUN, "--config.train.first.epochs=1", "--config.train.later.epochs=1"]
    run_one_and_two(arguments, tmp_path, launch, launch_pair)
    assert_runs_agree(tmp_path / "one", tmp_path / "two", "base", "rose", 1e-8)


@pytest.mark.slow
def test_two_processes_agree_with_one_after_three_float32_steps(tmp_path, launch, launch_pair):
    """An epoch of three steps; batches of 238 do not divide by four devices."""
    arguments = [*RUN, "--config.train.first.epochs=1", "--config.train.later.epochs=1"]
    arguments += [
        "--config.model.compute_dtype=float32",
        "--config.train.batch_size=238",
        "--config.model.width=2",
    ]
    run_one_and_two(arguments, tmp_path, launch, launch_pair)
    steps = [(task, step) for task, step, _ in logged(tmp_path / "two")]
    assert steps[0] == (0, 3)
    a, b = (snapshot_arrays(tmp_path / name / "checkpoints" / "base" / "stage_000") for name in ("one", "two"))
    for key in a:
        if "memory" not in key:  # class means amplify what the weights differ by
            np.testing.assert_allclose(a[key], b[key], rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_two_processes_agree_on_streamed_images(tmp_path, launch, launch_pair):
    """Each decodes its share of every batch: of training, of LDC's passes after it, and of test streams.

    On four devices 26 images become 28, of which the second process has two of padding.
    """
    arguments = [
        "--config=configs/imagenet100_cold10.py:smoke",
        "--config.model.width=1",
        "--config.model.compute_dtype=float64",
        "--config.data.images_per_class=1",
        "--config.scenario.task_sizes=(60,40)",
        "--config.train.batch_size=26",
        "--config.test.batch_size=50",
        "--config.data.decode_workers=1",
        "--methods=ldc",
    ]
    run_one_and_two(arguments, tmp_path, launch, launch_pair)
    assert_runs_agree(tmp_path / "one", tmp_path / "two", "lwf", "ldc", 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
def test_a_dead_host_ends_the_other_and_a_restart_resumes(victim, tmp_path, launch_pair):
    """Process 0 runs the service by which the others notice deaths: they must notice its own as well."""
    workdir = tmp_path / "run"
    arguments = [*INTERRUPTED, "--workdir", str(workdir)]
    pair = launch_pair(arguments)
    await_checkpoint(workdir, pair)
    pair[victim].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    assert pair[1 - victim].wait(125) not in (0, None), logs(tmp_path)
    assert time.monotonic() - begun < 120
    newest, before = saved_steps(workdir)[-1], logged(workdir)
    assert newest < STEPS
    assert_ends(launch_pair(arguments), [0, 0], tmp_path)
    assert_went_on(workdir, newest, before)


@pytest.mark.slow
def test_a_preemption_notice_stops_all_hosts_at_one_step(tmp_path, launch_pair):
    workdir = tmp_path / "run"
    arguments = [*INTERRUPTED, "--workdir", str(workdir)]
    pair = launch_pair(arguments)
    await_checkpoint(workdir, pair)
    pair[1].send_signal(signal.SIGTERM)
    assert_ends(pair, [75, 75], tmp_path)
    stopped = {line for line in logs(tmp_path).splitlines() if "stopped at step" in line}
    assert len(stopped) == 1, stopped
    newest, before = saved_steps(workdir)[-1], logged(workdir)
    assert f"stopped at step {newest} of task 0" in stopped.pop()
    assert_ends(launch_pair(arguments), [0, 0], tmp_path)
    assert_went_on(workdir, newest, before)


@pytest.mark.slow
def test_two_workdirs_are_refused(tmp_path, launch):
    """Each process with a folder of its own, as on hosts that share no file system."""
    address = free_address()
    pair = [launch([*RUN, "--workdir", str(tmp_path / f"run{index}")], 2, address, index) for index in (0, 1)]
    assert_ends(pair, [2, 2], tmp_path)
    for index in (0, 1):
        assert "is not the same folder on every host" in (tmp_path / f"log{index}").read_text()


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
    with pytest.raises(UserError, match=f"{tmp_path} is not the same folder on every host, or process 0"):
        hosts.check_shared(tmp_path)
    assert seen == [there]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_processes_with_different_settings_refuse(tmp_path, monkeypatch):
    """Process 1 was given another learning rate; where the data lies may differ."""

    def gather(text):
        other = json.loads(text)
        other["data"]["dir"] = "elsewhere"
        other["train"]["first"]["lr"] = 0.2
        return [text, json.dumps(other)]

    monkeypatch.setattr(hosts, "gather_text", gather)
    with pytest.raises(
        UserError, match=r"same settings:\n  train.first.lr: process 0 0.1, process 1 0.2\nGive the same"
    ):
        Workdir(tmp_path / "run", get_config()).__enter__()
    monkeypatch.setattr(hosts, "gather_text", lambda text: [text, text.replace('"dir": ""', '"dir": "elsewhere"')])
    with Workdir(tmp_path / "run", get_config()):
        pass


def test_texts_of_different_length_are_gathered(monkeypatch):
    """Process 1 has more to say, beyond ASCII; its length and bytes come as jax gathers them."""
    texts = [b"short", "längerer".encode()]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    lengths = np.array([len(text) for text in texts])

    def gather(value):
        if np.ndim(value) == 0:
            return lengths
        return np.stack([value, np.frombuffer(texts[1], np.uint8)])

    monkeypatch.setattr(hosts.multihost_utils, "process_allgather", gather)
    assert hosts.gather_text("short") == ["short", "längerer"]


@pytest.mark.parametrize("process", [0, 1])
def test_processes_that_do_not_find_each_other(process):
    """Each alone, and soon tired of waiting."""
    address = free_address()
    wait = f"from rose_jax.runtime import hosts; hosts.START_SECONDS = 2; hosts.start({address!r}, 2, {process})"
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
    (said,) = done.stderr.splitlines()
    assert said.startswith(
        "error: --distributed alone is for places where jax finds the other processes by itself"
    )
    assert (
        "here it does not: coordinator_address should be defined. Leave it out to run one process, or give" in said
    )


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
