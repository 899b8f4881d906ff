"""A path to an open file of bytes, or one line on why not. Leaves out: what is in it."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from pathlib import Path
from typing import IO

from specsim.errors import TraceError, nearest

__all__ = ["open_bytes", "shown_path"]

_PIPE_WAIT_S = 5.0
"""How long a named pipe may stay empty: as long as nobody writes into it, opening it would wait forever."""


def shown_path(path: str | Path) -> str:
    """A path in a message: one line of at most 200 characters."""
    text = "".join(char if char.isprintable() else "?" for char in str(path))
    return text if len(text) <= 200 else f"{text[:97]}...{text[-97:]}"


def _open_pipe(path: str | Path) -> IO[bytes]:
    """A named pipe, once something was written into it.

    Raises:
        TraceError: nothing was for `_PIPE_WAIT_S`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(_PIPE_WAIT_S * 1000):
            raise TraceError(
                f"{shown_path(path)}: nothing was written into this pipe for {_PIPE_WAIT_S:g} s; start its writer"
                " first, or read standard input instead: cat PIPE | specsim ... -"
            )
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_bytes(path: str | Path) -> IO[bytes]:
    """The trace at `path`, or standard input for `-`.

    Raises:
        TraceError: missing, a directory, a pipe into which nobody writes, or not to be opened.
    """
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        # The pipes of a shell, such as <(zcat x), have no place on the disk: they have a writer, or end.
        if stat.S_ISFIFO(os.stat(path).st_mode) and os.path.exists(os.path.realpath(path)):
            return _open_pipe(path)
        return open(path, "rb")
    except FileNotFoundError:
        where = Path(path)
        beside: list[str] = []
        with contextlib.suppress(OSError):
            beside = [entry.name for entry in os.scandir(where.parent) if not entry.is_dir()]
        raise TraceError(f"{shown_path(path)}: no such file{nearest(where.name, beside)}") from None
    except IsADirectoryError:
        raise TraceError(f"{shown_path(path)}: is a directory, not a trace file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{shown_path(path)}: cannot be opened: {reason}; give the path of a trace file") from None
