"""Budgeted evolution on a trained run: only every k-th image passes the old encoder and the queue.

    python scripts/evolve_every.py RUN [--every 1,2,4,8,16]

Prints accuracy and cost for each k; nothing is trained and the run's own results stay as they are. All k see the same
features, extracted once, so cost is compared within one run.
"""

import argparse
import copy
import json
from pathlib import Path

import numpy as np

from rose_jax import metrics
from rose_jax.experiment import open_run
from rose_jax.methods import METHODS
from rose_jax.scoring import Scorer
from rose_jax.stage import Stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", default="1,2,4,8,16")
    parser.add_argument("--data_dir", help="where the data lies, if not where the run found it")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    budgets = [int(k) for k in options.every.split(",")]
    with open_run(options.run, data_dir=options.data_dir) as (config, pipeline, trajectory):
        scorers = {}
        for k in budgets:
            chosen = copy.deepcopy(config)
            chosen.evolution.evolve_every = k
            scorers[k] = Scorer("rose", METHODS["rose"], chosen, pipeline.layout, None)
        labels, classes = pipeline.labels["test"], pipeline.scenario.num_classes
        accuracy: dict[int, list[float]] = {k: [] for k in budgets}
        cost: dict[int, float] = {}
        for task in range(pipeline.scenario.num_tasks):
            stream = pipeline.scenario.stream_indices(labels, task, config.seed)
            view = Stage(pipeline, task, trajectory, stream)
            for k, scorer in scorers.items():
                outcome = scorer.score(view)
                accuracy[k].append(
                    float(np.nanmean(metrics.class_accuracy(labels[stream], outcome.predictions, classes)))
                )
                cost[k] = outcome.seconds / view.test_seconds(task)  # the last stage's stays
    print(f"{'k':>3}  {'last':>6}  {'average':>7}  time / one forward pass")
    figures = {k: {"last": a[-1], "average": float(np.mean(a)), "cost": cost[k]} for k, a in accuracy.items()}
    for k, row in figures.items():
        print(f"{k:3d}  {row['last']:6.2f}  {row['average']:7.2f}  {row['cost']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
