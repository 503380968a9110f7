"""What can go wrong in a test stream without ending it, in words: whoever shows a result says so beside it."""

from collections.abc import Mapping
from typing import Any

EVENTS = {  # of evolution.Counts, and of any row
    "bad_rows": "rows with NaN or Inf: predicted -1, kept out of the queue",
    "broken_steps": "updates were not finite and kept the previous prototypes",
    "ill_posed_steps": "updates left some direction to the projector (dead channels or a queue shorter than d)",
    "unscored": "images had scores that are not finite: predicted -1, counted as wrong",
}


def told(counts: Mapping[str, Any]) -> list[str]:
    """ "12 updates were not finite and kept ..." for each of them that has happened."""
    found = ((counts.get(name), words) for name, words in EVENTS.items())
    return [f"{count:.0f} {words}" for count, words in found if isinstance(count, int | float) and count > 0]
