"""What a measurement has finished so far, one JSON line a piece, on the disk before the next is begun.

The first line says what was asked; a measurement that asks for something else does not go on with the file. A last line
that was cut off by a kill is forgotten. Texts stand in it as token ids, since past answers are needed to go on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specsim.errors import ScenarioError

__all__ = ["Journal"]


class Journal:
    """Opened for one measurement; `done` has the pieces of earlier runs, by key."""

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        """
        Raises:
            ScenarioError: the file belongs to another measurement, or cannot be read or written.
        """
        self.path = path
        self.done: dict[tuple[Any, ...], dict[str, Any]] = {}
        try:
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be read ({error.strerror}); delete it to start anew") from None
        whole = lines[:-1]
        if whole:
            self._take(whole, json.loads(json.dumps(asked)))
        try:
            self._file = path.open("r+b" if whole else "wb")
            self._file.seek(sum(len(line) + 1 for line in whole))
            self._file.truncate()
        except OSError as error:
            raise ScenarioError(f"{path}: cannot be written ({error.strerror}); give another -o") from None
        if not whole:
            self._write(dict(asked))

    def _take(self, lines: list[bytes], asked: dict[str, Any]) -> None:
        try:
            before, *pieces = (json.loads(line) for line in lines)
            for piece in pieces:
                self.done[tuple(piece["key"])] = piece
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ScenarioError(
                f"{self.path}: is no unfinished measurement ({error}); delete it to start anew"
            ) from None
        other = [key for key in asked if not isinstance(before, dict) or before.get(key) != asked[key]]
        if other:
            raise ScenarioError(
                f"{self.path}: an unfinished measurement with another {', '.join(other)}; ask for the same to go "
                f"on, give another -o, or delete it"
            )

    def add(self, key: tuple[Any, ...], piece: Mapping[str, Any]) -> None:
        """Keep a piece; on the disk when this returns."""
        self.done[key] = dict(piece)
        self._write({"key": list(key), **piece})

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ScenarioError(f"{self.path}: cannot be written ({error.strerror}); free some space") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
