"""Child processes on this machine: what each of them sees, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rose_jax.sweep.lines import Lines, last_lines, state
from rose_jax.sweep.local import Local, Slot, slots_for
from rose_jax.sweep.plan import Run
from rose_jax.sweep.schedule import Signals, Task, follow

# Stands for a run: fails if its device is in use, and writes down what it sees.
CHILD = """\
import json, os, sys, time
seen = {k: v for k, v in os.environ.items() if "VISIBLE" in k or "BOUNDS" in k}
device = seen.get("TPU_VISIBLE_CHIPS") or seen.get("CUDA_VISIBLE_DEVICES")
handle = os.open(f"device_{device}", os.O_CREAT | os.O_EXCL)  # fails if another run has it
time.sleep(0.2)
os.remove(f"device_{device}")
open(f"{sys.argv[1]}.json", "w").write(json.dumps(seen))
"""


def tasks_in(folder, count):
    return [
        Task(Run((f"run{i}",), folder / f"run{i}"), folder / f"run{i}.log", programs=str(i)) for i in range(count)
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("platform", "variable", "allowed", "expected"),
    [
        ("tpu", "TPU_VISIBLE_CHIPS", None, {"0", "1", "2"}),
        ("gpu", "CUDA_VISIBLE_DEVICES", None, {"0", "1", "2"}),
        ("gpu", "CUDA_VISIBLE_DEVICES", "3,5,GPU-ab", {"3", "5", "GPU-ab"}),
    ],
)
def test_each_child_sees_only_its_own_device(here, platform, variable, allowed, expected, monkeypatch):
    """Three fake devices, five runs."""
    if allowed:
        monkeypatch.setenv(variable, allowed)
    (here / "child.py").write_text(CHILD)
    tasks = tasks_in(here, 5)
    follow(tasks, Local(slots_for(platform, 3), [sys.executable, "child.py"]), Lines(io.StringIO()), Signals())
    assert [task.code for task in tasks] == [0] * 5, [last_lines(task, 3) for task in tasks]
    seen = [json.loads((here / f"run{i}.json").read_text()) for i in range(5)]
    assert {one[variable] for one in seen} == expected
    if platform == "tpu":
        for one in seen:
            assert one["TPU_PROCESS_BOUNDS"] == one["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"


def test_places(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 6, 7, 9}, raising=False)
    assert slots_for("cpu", 8) == [Slot("cpu", {})]
    assert [slot.cores for slot in slots_for("cpu", 1, 2)] == ["2,3", "6,7"]
    assert [slot.cores for slot in slots_for("cpu", 1, 6)] == ["-"] * 6
    assert len(slots_for("gpu", 8, 3)) == 3
    assert len(slots_for("gpu", 2, 3)) == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such thing")
def test_a_child_runs_on_its_own_cores(here):
    core = str(min(os.sched_getaffinity(0)))
    slot, (task,) = Slot("cpu", {}, core), tasks_in(here, 1)
    told = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    follow([task], Local([slot], told), Lines(io.StringIO()), Signals())
    assert last_lines(task, 1) == [core]


def test_a_child_that_is_killed_is_named_with_the_end_of_its_log(here):
    tasks, shown = tasks_in(here, 2), io.StringIO()
    tasks[0].log.write_text("of an earlier start\n")
    die = "import os, sys; print('12:00:00 loss \\x1b[31mNaN'); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    follow(tasks, Local([Slot("cpu", {})], [sys.executable, "-c", die]), Lines(shown), Signals())
    assert [task.code for task in tasks] == [-9, -9]
    assert last_lines(tasks[0], 9) == ["loss  [31mNaN"]
    assert state(tasks[0]) == "FAILED, killed by SIGKILL; was the machine out of memory?"
    assert shown.getvalue().count("FAILED") == 2
    tasks[0].code = 75
    assert state(tasks[0]) == "stopped, and saved before"


def test_a_terminal_has_a_live_line_for_each_run(here):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    tasks, shown = tasks_in(here, 3), Terminal()
    lines = Lines(shown)
    lines._draw(tasks)
    tasks[0].code, tasks[0].job, tasks[0].seconds = 0, object(), 61
    lines._draw(tasks)
    first, second = shown.getvalue().split("\033[3F")
    assert first.count("waiting") == 3
    assert "run0  done in 1:01" in second
    assert second.count("waiting") == 2


WAITING = """\
import signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + ".ready", "w").close()
time.sleep(60)
"""
SWEEP = """\
import sys
from pathlib import Path
from rose_jax.sweep.lines import Lines
from rose_jax.sweep.local import Local, Slot
from rose_jax.sweep.plan import Run
from rose_jax.sweep.schedule import Signals, Task, follow
tasks = [Task(Run((f"run{i}",), Path(f"run{i}")), Path(f"run{i}.log"), programs=str(i)) for i in range(3)]
with Signals() as signals:
    follow(tasks, Local([Slot("a", {}), Slot("b", {})], [sys.executable, "child.py"]), Lines(), signals)
sys.exit(signals.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -9)])
def test_children_end_with_their_sweep(here, number, code):
    """SIGTERM lets them save; a sweep that is killed takes its children along."""
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("other systems have no such thing")
    (here / "child.py").write_text(WAITING)
    (here / "sweep.py").write_text(SWEEP)
    sweep = subprocess.Popen([sys.executable, "sweep.py"], stderr=subprocess.DEVNULL)
    while not all((here / f"run{i}.ready").exists() for i in range(2)):
        assert sweep.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children")
    pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    sweep.send_signal(number)
    assert sweep.wait() == code
    while any(Path(f"/proc/{pid}").exists() and "Z" not in _state(pid) for pid in pids):
        time.sleep(0.02)
    assert not (here / "run2.ready").exists()
    if number == signal.SIGTERM:
        assert [(here / f"run{i}.log").read_text() for i in range(2)] == ["saved\n", "saved\n"]


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
