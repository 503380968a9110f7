"""A set that is streamed, not resident, through the whole run: decoding, padding, training, scoring."""

import numpy as np

from rose_jax import experiment
from rose_jax.config import Config, Schedule
from rose_jax.data import sources
from rose_jax.data.synthetic import SyntheticRecords
from rose_jax.runtime.sharding import Layout


def small_imagenet(*args, **kwargs):
    def split(number, per_class):
        labels = np.repeat(np.arange(4, dtype=np.int32), per_class)
        return sources.RecordSplit(SyntheticRecords(labels, number, 24), labels)

    names = tuple("abcd")
    return sources.Dataset("imagenet100", 4, names, 16, split(0, 9), split(1, 3), "synthetic")


def test_streamed_images_train_and_score(tmp_path, monkeypatch):
    """A batch of 12 on 8 devices is padded to 16; the second task has fewer images than a batch."""
    monkeypatch.setattr(sources, "load", small_imagenet)
    config = Config(name="streamed")
    config.data.dataset, config.data.augment, config.data.normalisation = "imagenet100", "flip", "imagenet"
    config.data.decode_workers = 0
    config.scenario.task_sizes = (3, 1)
    config.model.width, config.model.stem = 1, "conv7_pool"
    config.train.batch_size = 12
    config.train.first = config.train.later = Schedule(2, 0.05, (), 1e-4)
    config.evolution.capacity, config.test.batch_size, config.test.batches_per_call = 20, 5, 1
    config.methods = ("base", "rose")
    results = experiment.run(config, tmp_path, layout=Layout())
    assert results["train"]["compilations"] == 2
    assert results["setting"]["data"].startswith("synthetic imagenet100, 36 + 12 images")
    for name in ("base", "rose"):
        assert np.isfinite(results["scores"][name]["per_stage"]).all()
        (last,) = (tmp_path / "scores").glob(f"{name}_*_stage_001.npz")
        assert len(np.load(last)["predictions"]) == 12, "evaluation drops nothing"
