"""One BLAS thread while a stream evolves on CPUs.

jax hands triangular solves and factorisations to SciPy's OpenBLAS, which wakes a thread per core for matrices as small
as ours. They wait for each other by spinning, and on a busy machine that is most of a stream's time
(scripts/bench.py blas).
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import threadpoolctl


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """For calls whose results are waited for inside.

    The number is the whole process's: of several threads that are inside, the last one out restores it.
    """
    global _inside, _limit
    with _lock:
        if not _inside:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _limit.restore_original_limits()


def wait_with_one_blas_thread(function: Callable, *args: Any) -> Any:
    """function(*args); on CPUs it is computed before it returns.

    While it is traced nothing is computed, and accelerators have no use for BLAS: there nothing is limited, nor
    waited for.
    """
    tracing = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))
    if tracing or jax.default_backend() != "cpu":
        return function(*args)
    with one_blas_thread():
        return jax.block_until_ready(function(*args))


_lock = threading.Lock()
_inside = 0
_limit: Any = None


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    import scipy.linalg  # noqa: F401  loads the library that is to be limited

    return threadpoolctl.ThreadpoolController()
