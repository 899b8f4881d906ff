"""Compiling loops: numba with its cache where there is a place to write it, without where there is none.

Models nothing. A kernel is a plain function over arrays and numbers; it computes what Python would, bit for bit (no
fast-math). A cached kernel is compiled anew only when its own file changes, so kernels that call each other, and the
constants they use, share a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["kernel"]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled at its first call; divisions and bounds are not checked, as in C."""
    try:
        compiled: Callable[..., Any] = njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        compiled = njit(error_model="numpy")(function)
    return compiled
