"""Files that a command writes beside what it prints: refused early, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from specsim.errors import ScenarioError

__all__ = ["check_file", "whole_file"]


def check_file(flag: str, path: str, suffixes: tuple[str, ...], *, force: bool) -> None:
    """Refuse a file that `whole_file` could not write, before anything is simulated.

    Raises:
        ScenarioError: another suffix, a missing folder, or a file that exists without `force`.
    """
    target = Path(path)
    if target.suffix not in suffixes:
        raise ScenarioError(f"{flag} {path}: the name must end in {' or '.join(suffixes)}")
    if not target.parent.is_dir():
        raise ScenarioError(f"{flag} {path}: folder {target.parent} does not exist; make it first")
    if target.exists() and not force:
        raise ScenarioError(f"{flag} {path}: the file exists; give another name, or --force to replace it")


@contextmanager
def whole_file(flag: str, path: str) -> Iterator[TextIO]:
    """A text file that takes its name when it is complete; until then, and after any failure, an old one stays.

    Raises:
        ScenarioError: when it cannot be written.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.part")
    try:
        with draft.open("w", encoding="utf-8", newline="") as out:
            yield out
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ScenarioError(f"{flag} {path}: cannot be written: {error.strerror}") from error
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
