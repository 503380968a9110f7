"""Who starts when: a clockwork executor, whose runs end when the test says so."""

import os
import signal
import time

import pytest

from rose_jax.sweep import schedule
from rose_jax.sweep.plan import Run
from rose_jax.sweep.schedule import Signals, Task, follow


class FakeJob:
    place = "here"

    def __init__(self, executor, name):
        self.executor, self.name, self.left, self.stopped = executor, name, executor.lengths.get(name, 2), []

    def ended(self):
        self.left -= 1
        if self.left > 0:
            return None
        self.executor.running.remove(self.name)
        return self.executor.codes.get(self.name, 0)

    def signal(self, number):
        self.stopped.append(number)
        self.left, self.executor.codes[self.name] = 1, 75


class FakeExecutor:
    def __init__(self, slots, lengths=None, codes=None, shares_cache=False):
        self.slots, self.lengths, self.codes, self.shares_cache = slots, lengths or {}, codes or {}, shares_cache
        self.running, self.order, self.together, self.jobs = [], [], [], []

    def free(self):
        return len(self.running) < self.slots

    def start(self, run, log):
        self.running.append(run.name)
        self.order.append(run.name)
        self.together.append(sorted(self.running))
        self.jobs.append(FakeJob(self, run.name))
        return self.jobs[-1]


class Silent:
    def show(self, tasks):
        pass


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(schedule, "LOOK_SECONDS", 0)


def make(tmp_path, **trainings):
    """A task for each name, with the encoders that it needs."""
    return [Task(Run((), tmp_path / name), tmp_path / "log", frozenset(t), "p") for name, t in trainings.items()]


def test_more_runs_than_places_queue_up_and_a_failure_stops_nobody(tmp_path):
    tasks = make(tmp_path, a="1", b="2", c="3", d="4", e="5")
    executor = FakeExecutor(2, codes={"b": -9})
    follow(tasks, executor, Silent(), Signals())
    assert executor.order == ["a", "b", "c", "d", "e"]
    assert max(map(len, executor.together)) == 2
    assert [task.code for task in tasks] == [0, -9, 0, 0, 0]


def test_encoders_are_trained_by_one_run_and_the_others_wait_for_it(tmp_path):
    tasks = make(tmp_path, a=["x"], b=["x"], c=["x", "y"], d=["z"], e=["x"])
    executor = FakeExecutor(4, lengths={"a": 6, "d": 20})
    follow(tasks, executor, Silent(), Signals())
    assert executor.order == ["a", "d", "b", "c", "e"]
    assert executor.together[-1] == ["b", "c", "d", "e"], "with x trained, those that only score run side by side"


def test_if_the_first_fails_the_next_trains(tmp_path):
    tasks = make(tmp_path, a=["x"], b=["x"], c=["x"])
    executor = FakeExecutor(4, codes={"a": 1}, lengths={"b": 9})
    follow(tasks, executor, Silent(), Signals())
    assert executor.together == [["a"], ["b"], ["c"]]


def test_runs_that_compile_the_same_wait_until_the_first_has_begun(tmp_path, monkeypatch):
    looks = 0

    def begun(task):
        nonlocal looks
        looks += 1
        return looks > 5

    monkeypatch.setattr(schedule, "has_begun", begun)
    tasks = make(tmp_path, a="1", b="2", c="3")
    tasks[2].programs = "other"
    executor = FakeExecutor(3, lengths={"a": 50, "c": 50}, shares_cache=True)
    follow(tasks, executor, Silent(), Signals())
    assert executor.order == ["a", "c", "b"]
    assert looks == 6


def test_what_has_begun_has_logged_since_it_was_started(tmp_path):
    (task,) = make(tmp_path, a="1")
    task.begun = time.monotonic() - 5
    assert not schedule.has_begun(task)
    (tmp_path / "a").mkdir()
    log = tmp_path / "a" / "metrics.jsonl"
    log.write_text("{}\n")
    assert schedule.has_begun(task)
    earlier = time.time() - 60
    os.utime(log, (earlier, earlier))
    assert not schedule.has_begun(task), "those lines are of an earlier start"


@pytest.fixture
def plain_signals():
    """Handlers as a terminal leaves them; nohup, and a shell in the background, have some ignored."""
    plain = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield plain
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGHUP, 75)])
def test_a_signal_reaches_all_that_run_and_nothing_new_is_started(tmp_path, number, code, plain_signals):
    tasks = make(tmp_path, a="1", b="2", c="3")
    executor = FakeExecutor(2, lengths={"a": 10**9, "b": 10**9})

    class Stop:
        def show(self, tasks):
            if len(executor.order) == 2 and not signals.asked:
                signal.raise_signal(number)

    with Signals() as signals:
        follow(tasks, executor, Stop(), signals)
    passed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
    assert [job.stopped for job in executor.jobs] == [[passed_on], [passed_on]]
    assert [task.code for task in tasks] == [75, 75, None]
    assert signals.exit_code == code
    assert signal.getsignal(number) is plain_signals[number]
