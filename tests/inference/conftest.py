"""The small run of digits, its last test stream as files, and the labels that the run gave them."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_run
from PIL import Image

import rose_jax
from rose_jax.data import sources
from rose_jax.data.scenario import make_scenario


@pytest.fixture(scope="session")
def used(finished, one_device, tmp_path_factory):
    workdir, results = finished
    config = tiny_run.get_config()
    scenario = make_scenario(config.scenario, 10)
    test = sources.load("digits").test
    labels = scenario.internal(test.labels)
    stream = scenario.stream_indices(labels, 2, config.seed)
    folder = tmp_path_factory.mktemp("stream")
    for place, row in enumerate(stream):
        Image.fromarray(test.images[row]).save(folder / f"{place:04d}.png")
    (saved,) = (workdir / "scores").glob("rose_*_stage_002.npz")
    predictions = np.load(saved)["predictions"]
    names = [str(scenario.class_order[k]) for k in predictions]
    model = rose_jax.load(workdir, layout=one_device)
    return SimpleNamespace(
        workdir=workdir,
        results=results,
        model=model,
        images=test.images[stream],
        folder=folder,
        predictions=predictions,
        names=names,
        truth=labels[stream],
    )
