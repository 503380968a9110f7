"""One BLAS thread while a stream evolves on CPUs.

jax hands triangular solves and factorisations to SciPy's OpenBLAS, which wakes a thread per core for matrices as small
as ours. They wait for each other by spinning: on a busy machine a solve of 0.1 ms takes 8 (scripts/bench_blas.py).
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import threadpoolctl


def one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """For calls whose results are waited for inside. Elsewhere than on CPUs nothing is limited."""
    if jax.default_backend() != "cpu":
        return contextlib.nullcontext()
    return _controller().limit(limits=1, user_api="blas")


def wait_with_one_blas_thread(function: Callable, *args: Any) -> Any:
    """function(*args), computed before it returns; while it is traced nothing is computed, so nothing is limited."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        return function(*args)
    with one_blas_thread():
        return jax.block_until_ready(function(*args))


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    import scipy.linalg  # noqa: F401  loads the library that is to be limited

    return threadpoolctl.ThreadpoolController()
