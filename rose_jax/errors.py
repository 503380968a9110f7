"""The one exception whose message is meant for the user: what was wrong, where we looked, what to do."""

import difflib
from collections.abc import Iterable

INTERRUPTED_EXIT_CODE = 130  # as shells have it for Ctrl-C


class UserError(ValueError):
    """Bad input. `main` prints the message without a traceback and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str], listed_by: str = "") -> UserError:
    """An error for a name that is not in a table, with the nearest right one.

    listed_by: what shows the table, if it is too long for a message.
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    where = f"{listed_by} lists all." if listed_by else f"Known: {', '.join(known)}."
    return UserError(f"Unknown {kind} {name!r}.{hint} {where}")
