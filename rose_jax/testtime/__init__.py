"""What happens while unlabelled test images stream by: one file per method, one line here."""

from rose_jax.testtime import batch_norm, cotta, eata, evolution, none, tent, ttt, ttt_plus
from rose_jax.types import Adaptation, Plugin

ADAPTATIONS: dict[str, Plugin[Adaptation]] = {
    "none": Plugin(none.make),
    "rose": Plugin(evolution.make_rose, ("evolution",)),
    "gd": Plugin(evolution.make_gd, ("evolution",)),
    "gd_queue": Plugin(evolution.make_gd_queue, ("evolution",)),
    "batch_norm": Plugin(batch_norm.make, ("testtime",)),
    "tent": Plugin(tent.make, ("testtime", "tent")),
    "eata": Plugin(eata.make, ("testtime", "eata")),
    "cotta": Plugin(cotta.make, ("testtime", "cotta")),
    "ttt": Plugin(ttt.make, ("testtime", "ttt")),
    "ttt++": Plugin(ttt_plus.make, ("testtime", "ttt_plus", "simclr")),
}
