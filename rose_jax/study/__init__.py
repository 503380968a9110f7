"""The paper's studies on a trained run: `python -m rose_jax.study NAME[,NAME...|all] --workdir RUN`."""

from collections.abc import Callable
from typing import NamedTuple

from rose_jax.study import adaptation, cost, distinct, drift, eliminate, metric, oracle, samples, sweep, unbalanced
from rose_jax.study.subject import Finding, Subject


class Study(NamedTuple):
    title: str
    paper: str  # label of the paper's table or figure of the same question; "" if the paper has none
    run: Callable[[Subject], Finding]
    long: bool = False  # takes longer than all others together: `all` leaves it out unless --thorough is given


STUDIES: dict[str, Study] = {
    "samples": Study("test images per class", "fig:testnum", samples.run),
    "unbalanced": Study("balanced and unbalanced streams", "tab:unbalanced", unbalanced.run),
    "drift": Study("estimated and true drift", "fig:driftcifar", drift.run),
    "capacity": Study("queue capacity", "tab:queue_capacity", sweep.capacity),
    "time": Study("inference time", "tab:inference_time", cost.inference_time),
    "oracle": Study("offline gradient descent", "tab:oracle", oracle.run),
    "eliminate": Study("leakage eliminated", "tab:eliminate", eliminate.run),
    "distinct": Study("same or distinct test data", "tab:eliminate2", distinct.run),
    "alpha": Study("noise of the pseudo-features", "supplement, implementation details", sweep.alpha),
    "granularity": Study("images per update", "", sweep.granularity),
    "budget": Study("evolving on every k-th image", "", cost.budget),
    "adaptation": Study("methods that adapt the network", adaptation.TABLE, adaptation.run, long=True),
    "metric": Study("the evolved metric and its alternatives", "", metric.run, long=True),
}

__all__ = ["STUDIES", "Finding", "Study", "Subject"]
