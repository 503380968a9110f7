"""What happens while unlabelled test images stream by: one file per method, one line here."""

from rose_jax.testtime import batch_norm, evolution, none
from rose_jax.types import Adaptation, Plugin

ADAPTATIONS: dict[str, Plugin[Adaptation]] = {
    "none": Plugin(none.make),
    "rose": Plugin(evolution.make_rose, ("evolution",)),
    "gd": Plugin(evolution.make_gd, ("evolution",)),
    "gd_queue": Plugin(evolution.make_gd_queue, ("evolution",)),
    "batch_norm": Plugin(batch_norm.make, ("testtime",)),
}
