"""The one exception whose message is meant for the user: what was wrong, where we looked, what to do."""

import difflib
from collections.abc import Iterable

INTERRUPTED_EXIT_CODE = 130  # as shells have it for Ctrl-C


class UserError(ValueError):
    """Bad input. `main` prints the message without a traceback and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not in a table, with the nearest right one."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UserError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")
