"""Streamed batches: random access by step, torchvision's crops, worker processes, padding and order."""

import io
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rose_jax.data import crops, streaming
from rose_jax.data.order import epoch_order
from rose_jax.data.sources import RecordSplit
from rose_jax.errors import UserError

SIZE = 32
SEED, TASK = 3, 1
OPTIONS = {"order_fn": epoch_order, "batch_size": 4, "image_size": SIZE, "seed": SEED, "task": TASK}


class FlatImages:
    """Image i is 40 x 60 of the one colour (i, i, i): a crop of it shows which image it was."""

    def __init__(self, n: int, spoilt: int = -1):
        self.n, self.spoilt = n, spoilt

    def encoded(self, i: int) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(np.full((40, 60), i, np.uint8)).save(buffer, "PNG")  # gray, to become RGB
        return buffer.getvalue()[: 30 if i == self.spoilt else None]

    def name(self, i: int) -> str:
        return f"folder/{i}.png"


class NoisyImages(FlatImages):
    def encoded(self, i: int) -> bytes:
        buffer = io.BytesIO()
        pixels = np.random.default_rng(i).integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()


def flat_split(n: int = 30, **kwargs) -> RecordSplit:
    return RecordSplit(FlatImages(n, **kwargs), np.arange(n, dtype=np.int32) + 500)


def noisy_split(n: int = 30) -> RecordSplit:
    return RecordSplit(NoisyImages(n), np.arange(n, dtype=np.int32))


def batches(split, indices, first=0, num=7, num_workers=0, **changes):
    options = {**OPTIONS, **changes}
    found = streaming.train_batches(
        split, indices, first_step=first, num_steps=num, num_workers=num_workers, **options
    )
    return list(found)


def test_steps_follow_the_addressed_order():
    indices = np.arange(5, 19)  # 14 images: three batches of four an epoch, two dropped
    for step, (images, labels) in enumerate(batches(flat_split(), indices, num=7)):
        epoch, k = divmod(step, 3)
        expected = indices[epoch_order(SEED, TASK, epoch, 14)[4 * k : 4 * k + 4]]
        np.testing.assert_array_equal(labels, expected + 500)
        assert images.dtype == np.uint8
        np.testing.assert_array_equal(images, np.broadcast_to(expected[:, None, None, None], (4, SIZE, SIZE, 3)))


def test_any_step_can_be_the_first():
    indices = np.arange(14)
    whole = batches(noisy_split(), indices, num=7)
    for first in (1, 3, 5):
        for (a, la), (b, lb) in zip(whole[first:], batches(noisy_split(), indices, first, 7 - first), strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(la, lb)


def test_crops_differ_by_epoch_task_and_seed():
    indices = np.arange(4)
    (reference, _), (second_epoch, _) = batches(noisy_split(), indices, num=2, order_fn=_in_order)
    (other_seed, _), (other_task, _) = (
        batches(noisy_split(), indices, num=1, order_fn=_in_order, **{key: 9})[0] for key in ("seed", "task")
    )
    for other in (second_epoch, other_seed, other_task):
        assert np.mean(reference != other) > 0.5


def _in_order(seed, task, epoch, n):
    return np.arange(n)


def test_parts_make_up_the_batch():
    """Of three processes the last has nothing but padding to do."""
    whole = batches(noisy_split(), np.arange(14), num=3)
    parts = [batches(noisy_split(), np.arange(14), num=3, part=part) for part in ((0, 3), (3, 4), (4, 4))]
    for step in range(3):
        for field in range(2):
            joined = np.concatenate([part[step][field] for part in parts])
            np.testing.assert_array_equal(joined, whole[step][field])


def test_worker_processes_give_the_same_batches():
    alone = batches(noisy_split(), np.arange(14), first=1, num=5)
    together = batches(noisy_split(), np.arange(14), first=1, num=5, num_workers=2)
    for (a, la), (b, lb) in zip(alone, together, strict=True):
        assert type(b) is np.ndarray  # not a window on memory that a worker may reuse
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(la, lb)


def test_eval_keeps_order_and_pads_the_last_batch():
    indices = np.array([7, 2, 9, 9, 0, 11, 3])
    found = list(streaming.eval_batches(flat_split(), indices, batch_size=3, image_size=SIZE, num_workers=0))
    assert [valid.tolist() for _, valid in found] == [[True] * 3, [True] * 3, [True, False, False]]
    images = np.concatenate([images for images, _ in found])
    assert images.shape == (9, SIZE, SIZE, 3)
    np.testing.assert_array_equal(images[:7, 4, 5, 1], indices)
    assert not images[7:].any()


def test_undecodable_image_is_named():
    with pytest.raises(UserError, match=r"folder/6.png does not decode"):
        batches(flat_split(spoilt=6), np.arange(4, 8), num=1)


def test_batch_larger_than_the_task():
    with pytest.raises(UserError, match="A task of 3 images cannot fill a batch of 4"):
        batches(flat_split(), np.arange(3))


def test_random_box_has_torchvisions_distribution():
    """On a large square most first tries fit: area uniform in .08..1 where they do, ratio log-uniform."""
    width = height = 2000
    rng = np.random.default_rng(0)
    boxes = np.array([crops.random_box(width, height, rng) for _ in range(4000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= width
    assert boxes[:, 3].max() <= height
    ratio, area = np.log(w / h), w * h / (width * height)
    assert np.abs(ratio).max() <= math.log(4 / 3) + 2e-3
    small = area < 0.5  # always fit, so still uniform
    assert area.min() >= 0.08 - 1e-3
    np.testing.assert_allclose(np.mean(area[small]), (0.08 + 0.5) / 2, atol=0.01)
    np.testing.assert_allclose(np.std(ratio[small]), 2 * math.log(4 / 3) / math.sqrt(12), rtol=0.03)
    left = boxes[small, 0] / (width - w[small])
    np.testing.assert_allclose([left.mean(), left.std()], [0.5, 1 / math.sqrt(12)], atol=0.02)


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(1000, 10, (493, 0, 506, 10)), (10, 1000, (0, 493, 10, 506)), (50, 50, (0, 0, 50, 50))],
)
def test_central_box_after_ten_misfits(width, height, box):
    assert crops.central_box(width, height) == box
    if width != height:  # in so narrow a strip even the smallest area wanted does not fit
        assert crops.random_box(width, height, np.random.default_rng(0)) == box


def test_center_crop_of_224():
    """500 x 375 as torchvision: shorter side to 256, longer to int(256 * 500 / 375) = 341, offsets 58 and 16."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8))
    expected = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 58 + 224, 16 + 224))
    np.testing.assert_array_equal(crops.resize_and_center_crop(image, 224), np.asarray(expected))


def test_workers_do_not_outlive_a_parent_that_was_killed():
    """The parent forks a worker and is killed: nobody is left to tell the worker to stop."""
    script = (
        "import os, time; from rose_jax.data import streaming\n"
        "worker = os.fork()\n"
        "if not worker: streaming._init_worker(0, 1)\n"
        "else: print(worker, flush=True)\n"
        "time.sleep(300)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    time.sleep(1)  # the worker looks who its parent is
    parent.kill()
    parent.wait()
    for _ in range(300):
        try:
            state = Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # dead, and whoever adopted it has not looked yet
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker went on alone")
