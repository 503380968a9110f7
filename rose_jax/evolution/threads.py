"""One BLAS thread while a stream is classified on CPUs.

jax calls SciPy's OpenBLAS for triangular solves and factorisations. It takes a thread per core even for small
matrices, and on a busy machine a stream would mostly wait between these threads (scripts/bench.py blas).
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
    """Limits BLAS to one thread; wait for results before leaving.

    The limit holds for the whole process. It ends when no Python thread is inside this context any more.
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
    """function(*args), on CPUs with one BLAS thread and waited for.

    Under a trace nothing is computed, and accelerators do not use BLAS: there it is a plain call.
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
    import scipy.linalg  # noqa: F401  loads the OpenBLAS that is to be limited

    return threadpoolctl.ThreadpoolController()
