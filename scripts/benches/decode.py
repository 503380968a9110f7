"""CPU time that an ImageNet JPEG takes from its file to a random crop of 224 pixels, by the code that the workers run.

The files are scikit-learn's two photographs at ImageNet's usual 500 x 375.
"""

import argparse
import io
import time

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from rose_jax.data import crops, decode

from .shared import Report, in_turns

IMAGES = 20  # of each photograph in a round


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quality", type=int, default=95, help="of the JPEG files (95)")


def run(options: argparse.Namespace, report: Report) -> None:
    files = {}
    for number, photo in enumerate(load_sample_images().images, 1):
        buffer = io.BytesIO()
        Image.fromarray(photo).resize((500, 375)).save(buffer, "JPEG", quality=options.quality)
        files[f"photograph {number}, {len(buffer.getvalue()) // 1000} kB"] = buffer.getvalue()
    rng = np.random.default_rng(0)

    def decoded(file: bytes) -> None:
        for _ in range(IMAGES):
            crops.random_resized_crop(decode.open_rgb(file, "photograph"), 224, rng)

    runs = {name: lambda file=file: decoded(file) for name, file in files.items()}
    times = in_turns(runs, options.rounds, per=IMAGES, clock=time.process_time)
    rows = {name: {"CPU ms per image": 1e3 * float(np.median(each))} for name, each in times.items()}
    report.table("JPEG 500 x 375, random crop to 224", rows)
