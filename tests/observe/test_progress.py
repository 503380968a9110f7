"""Progress on a terminal and off it, against lines written out by hand."""

import io
import logging
import re

import pytest

from rose_jax.runtime.progress import Progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class BrokenStream(io.StringIO):
    def write(self, text):
        raise OSError(5, "Input/output error")


def line(step, *, steps=100, seconds=2.0, images=640, epoch=0, **more):
    base = {"kind": "train", "task": 0, "step": step, "steps": steps, "epoch": epoch, "lr": 0.1}
    return base | {"images": images, "seconds": seconds, "loss": 1.25} | more


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain(clock):
    return Progress(io.StringIO(), clock=clock)


def written(progress) -> list[str]:
    """Without the time of day at the front."""
    lines = progress._stream.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", text) for text in lines)
    return [text[9:] for text in lines]


def test_a_stream_that_is_no_terminal_gets_a_line_every_n_seconds_and_one_at_the_end(plain, clock):
    plain.task(2, 10, 100)
    for step in range(10, 101, 10):
        clock.now += 11.0
        plain.update(line(step, epoch=step // 10 - 1))
    # 33 s and 66 s are the first moments 30 s after the last line; step 100 is the end.
    assert written(plain) == [
        "task 3/10  epoch 3  step 30/100  320 images/s  loss 1.25  ETA 0:00:14",
        "task 3/10  epoch 6  step 60/100  320 images/s  loss 1.25  ETA 0:00:08",
        "task 3/10  epoch 9  step 90/100  320 images/s  loss 1.25  ETA 0:00:02",
        "task 3/10  epoch 10  step 100/100  320 images/s  loss 1.25  ETA 0:00:00",
    ]


def test_no_control_characters_off_a_terminal(plain, clock):
    plain.task(0, 1, 10)
    clock.now = 99
    plain.update(line(10, steps=10))
    plain.stage("task 1/1  accuracy: rose 53.5")
    plain.close()
    assert not set("\r\x1b") & set(plain._stream.getvalue())
    assert written(plain)[-1] == "task 1/1  accuracy: rose 53.5"


def test_the_compilation_in_the_first_line_does_not_spoil_the_eta(plain, clock):
    plain.task(0, 1, 1000)
    plain.update(line(10, steps=1000, seconds=300.0))
    clock.now = 31
    plain.update(line(20, steps=1000, seconds=1.0))
    assert written(plain)[-1].endswith("ETA 0:01:38")  # 980 steps of 0.1 s


def test_the_pace_is_smoothed(plain, clock):
    plain.task(0, 1, 130)
    for step, seconds in ((10, 9.0), (20, 10.0), (30, 20.0)):
        clock.now += 31
        plain.update(line(step, steps=130, seconds=seconds))
    assert written(plain)[-1].endswith("ETA 0:02:30")  # 100 steps of (10 + 20) / 20 s


def test_one_slow_step_among_many_short_ones_is_not_the_pace(plain, clock):
    """As one that compiles: the mean is over a minute of work, not over the last ten steps."""
    for done in range(1, 102):
        clock.now += 31
        plain.count("samples", done, 1101, 40.0 if done == 101 else 0.1)
    assert written(plain)[-1].endswith("ETA 0:08:19")  # 1000 steps of (99 x 0.1 + 40) / 100 s
    for done in range(102, 1002):
        plain.count("samples", done, 1101, 0.1)
    clock.now += 31
    plain.count("samples", 1002, 1101, 0.1)
    assert written(plain)[-1].endswith("ETA 0:00:10")  # a minute later it is forgotten


def test_a_later_task_begins_at_the_pace_of_the_last(plain, clock):
    """Its first line may include compilation and does not count; another objective begins anew."""
    plain.task(0, 3, 40, label="base")
    for step in (10, 20, 30, 40):
        plain.update(line(step, steps=40, seconds=10.0))
    clock.now = 31
    plain.task(1, 3, 110, label="base")
    plain.update(line(10, steps=110, seconds=500.0))
    assert written(plain)[-1].endswith("ETA 0:01:40")  # 100 steps of 1 s
    for step in range(20, 110, 10):
        clock.now += 31
        plain.update(line(step, steps=110, seconds=20.0))
    assert written(plain)[-1].endswith("ETA 0:00:19")  # 10 steps of (1 x 10 + 9 x 20) / 100 s
    clock.now += 31
    plain.task(0, 3, 110, label="lwf")
    plain.update(line(10, steps=110, seconds=30.0))
    assert written(plain)[-1].endswith("ETA 0:05:00")


def test_a_resumed_task_counts_from_its_first_step_and_the_run_has_an_eta_too(plain, clock):
    plain.task(0, 2, 100, first=50, steps_after=3600, label="base")
    clock.now = 31
    plain.update(line(60, seconds=10.0))
    assert written(plain) == [
        "base task 1/2  epoch 1  step 60/100  64 images/s  loss 1.25  ETA 0:00:40, run 1:00:40"
    ]


def test_lines_of_other_kinds_and_terms_that_are_absent(plain, clock):
    plain.task(0, 1, 100)
    clock.now = 31
    plain.update({"kind": "stream", "task": 0, "step": 3})
    assert written(plain) == []
    no_loss = line(10)
    del no_loss["loss"]
    plain.update(no_loss)
    assert written(plain) == ["task 1/1  epoch 1  step 10/100  320 images/s  ETA 0:00:18"]


def test_a_disabled_one_is_silent(clock):
    progress = Progress(io.StringIO(), enabled=False, clock=clock)
    progress.task(0, 1, 100)
    clock.now = 99
    progress.update(line(100))
    progress.stage("task 1/1")
    assert progress._stream.getvalue() == ""


def test_a_terminal_gets_one_bar_per_task_and_the_summary_on_a_line_of_its_own(clock):
    stream = io.StringIO()
    with Progress(stream, bars=True, clock=clock) as progress:
        for task in range(2):
            progress.task(task, 2, 100)
            progress.update(line(40, epoch=3))
            progress.update(line(100, epoch=9))
            progress.stage(f"task {task + 1}/2  accuracy: rose 50.0")
    drawn = re.split(r"[\r\n]", stream.getvalue())
    assert any("task 1/2  40%" in text and "40/100" in text and "epoch 4" in text for text in drawn)
    assert any("task 2/2 100%" in text and "320 images/s  loss 1.25  ETA 0:00:00" in text for text in drawn)
    summaries = [text for text in drawn if "accuracy" in text]
    assert summaries == ["task 1/2  accuracy: rose 50.0", "task 2/2  accuracy: rose 50.0"]


def test_log_messages_go_around_the_bar(clock, capsys, monkeypatch):
    handler = logging.StreamHandler()  # to stderr, which capsys holds
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    with Progress(bars=True, clock=clock) as progress:
        progress.task(0, 1, 100)
        progress.update(line(40))
        root.warning("checkpoint is damaged")
    assert root.handlers == [handler]
    assert "checkpoint is damaged" in re.split(r"[\r\n]", capsys.readouterr().err)  # alone on its line


@pytest.mark.parametrize("bars", [False, True])
def test_a_terminal_that_went_away_does_not_end_the_run(clock, bars):
    progress = Progress(BrokenStream(), bars=bars, clock=clock)
    progress.task(0, 1, 100)
    clock.now = 99
    progress.update(line(50))
    progress.update(line(100))
    progress.stage("task 1/1")
    progress.close()
    assert not progress._enabled
