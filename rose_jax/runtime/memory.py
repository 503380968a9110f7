"""Work that may need more memory than there is: one message that says which option makes it smaller."""

import contextlib
from collections.abc import Iterator

from jax.errors import JaxRuntimeError

from rose_jax.errors import UserError

_OF_A_RUN = (
    ", use more devices (a batch is split over them), or on an accelerator set config.model.compute_dtype=bfloat16. "
    "What was saved before is whole"
)
_WORDS = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")


@contextlib.contextmanager
def must_fit(what: str, keys: str, otherwise: str = _OF_A_RUN) -> Iterator[None]:
    """Around compiling and running; errors of other kinds pass. keys: options to lower, as "config.KEY 128"."""
    try:
        yield
    except (MemoryError, JaxRuntimeError) as error:
        said = str(error).strip().splitlines() or ["MemoryError"]
        if isinstance(error, JaxRuntimeError) and not any(word in str(error) for word in _WORDS):
            raise
        raise UserError(f"{what} does not fit in memory ({said[0]}). Lower {keys}{otherwise}.") from error
