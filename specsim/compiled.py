"""Compiling loops: numba with its cache where there is a place to write it, without where there is none.

Models nothing. A kernel is a plain function over arrays and numbers; it computes what Python would, bit for bit (no
fast-math). A cached kernel is compiled anew when its own file changes, or one of which its file imports kernels;
constants of other files are looked at only where kernels come from there too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

__all__ = ["kernel", "wide_product"]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled at its first call; divisions and bounds are not checked, as in C."""
    compiled: Callable[..., Any] = njit(error_model="numpy")(function)
    if compiled is not function:  # with NUMBA_DISABLE_JIT it is
        with suppress(RuntimeError):  # neither the package's folder nor the user's cache folder can be written
            compiled._cache = _Cache(function)  # type: ignore[attr-defined]
    return compiled


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        self._others = sorted(_files_called(function) - {function.__code__.co_filename})
        super().__init__(function)

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        """A name for each content of the sources: numba looks at the function's own file only, and writes its index
        before the code that it names, so that whoever reads in between would run the code of an older source under the
        same name."""
        others = [Path(file).read_bytes() for file in self._others]
        stamp = repr((self.locator.get_source_stamp(), numba.__version__, others))
        return f"{super().get_filename_base(fullname, abiflags)}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"


def _files_called(function: Callable[..., Any]) -> set[str]:
    """Files of all kernels that a function can see, and of those that these see."""
    files, at_hand = set(), [function]
    while at_hand:
        one = at_hand.pop()
        if one.__code__.co_filename not in files:
            files.add(one.__code__.co_filename)
            at_hand += [found.py_func for found in one.__globals__.values() if isinstance(found, Dispatcher)]
    return files


class _Cache(FunctionCache):  # type: ignore[misc]
    """A cache that costs a compilation where it cannot be used, and never the run."""

    _impl_class = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling what is damaged raises anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # a full disk, or a folder that can no longer be written
            super().save_overload(sig, data)


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]

    def wide_product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
        """(upper, lower half) of the product of two 64-bit numbers, for which compiled Python has no word."""
        whole = int(a) * int(b)
        return np.uint64(whole >> 64), np.uint64(whole & 0xFFFFFFFFFFFFFFFF)

else:

    @intrinsic  # type: ignore[untyped-decorator]
    def wide_product(typing_context, a, b):  # type: ignore[no-untyped-def]
        """See above."""

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            half, wide = ir.IntType(64), ir.IntType(128)
            both = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
            upper = builder.trunc(builder.lshr(both, ir.Constant(wide, 64)), half)
            return context.make_tuple(builder, signature.return_type, (upper, builder.trunc(both, half)))

        return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), generate
