"""Jobs that note who did them, for workers of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from specsim.errors import ScenarioError

__all__ = ["broken", "squares", "tries"]


def squares(folder: str) -> Callable[[int], int]:
    """Squares a number and notes who did it; 13 kills its worker, 7 does so the first time, 5 raises."""

    def square(number: int) -> int:
        note = Path(folder) / str(number)
        before = len(note.read_text().split()) if note.exists() else 0
        with note.open("a") as out:
            out.write(f"{os.getpid()} ")
        if number == 13 or (number == 7 and not before):
            os._exit(9)
        if number == 5:
            raise ScenarioError("five is refused")
        return number * number

    return square


def broken(folder: str) -> Callable[[int], int]:
    """Cannot be set up."""
    raise ScenarioError(f"nothing in {folder}")


def tries(folder: Path, number: int) -> list[str]:
    """Processes that began a number, in order."""
    return (folder / str(number)).read_text().split()
