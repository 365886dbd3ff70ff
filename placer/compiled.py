"""Compilation by numba, with the machine code kept for the next process.

numba keeps it beside the module, in ``__pycache__``; where that cannot be written, in the
user's cache folder, or wherever ``NUMBA_CACHE_DIR`` says.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function with these options of ``numba.njit``."""

    def compile_function(function: _Function) -> _Function:
        try:
            machine_code: _Function = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # nowhere to keep it: every process compiles for itself
            machine_code = numba.njit(**options)(function)
        return machine_code

    return compile_function
