"""What can go wrong, as a tree.

    SpecsimError              exit code 1: the job itself failed
    +-- InputError            exit code 2: the input or the flags are wrong; the message says the way out
    |   +-- TraceError        a request trace
    |   +-- ScenarioError     a scenario file, a flag or a combination of them
    |   +-- CatalogueError    an unknown or unusable GPU or model
    |   +-- ProfileError      a latency or acceptance profile
    |   +-- CapacityError     a deployment that does not fit its memory
    |   +-- StoreError        the database: locked, read-only, corrupt, unknown id
    +-- InvariantError        a law of the simulator was broken: a bug in specsim, never the user's fault

Every message is one line: the place, the value, the way out. What is echoed in it is cut when it is long.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = [
    "CapacityError",
    "CatalogueError",
    "InputError",
    "InvariantError",
    "ProfileError",
    "ScenarioError",
    "SpecsimError",
    "StoreError",
    "TraceError",
    "nearest",
    "shortened",
]

_LONGEST = 2000
_PAIRS = "'\"[("
_ECHO = re.compile(
    r"""(?<![A-Za-z0-9])('[^']{161,}'|"[^"]{161,}"|\[[^\[\]]{161,}\]|\([^()]{401,}\))(?![A-Za-z0-9])|[^\s'"]{241,}"""
)
"""What a message echoes: quoted or bracketed text, or one word, longer than anybody reads."""


def shortened(message: str) -> str:
    """`message` on one line, with what it echoes cut: a policy or list of some thousand characters is not read."""
    line = " ".join("".join(char if char.isprintable() else " " for char in message).split())
    line = _ECHO.sub(lambda found: f"{found[0][:120]}...{found[0][-1] if found[0][0] in _PAIRS else ''}", line)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class SpecsimError(Exception):
    """Base of everything that specsim raises on purpose."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class InputError(SpecsimError):
    """The user's input is wrong; the message names place, value and way out."""

    exit_code = 2


class TraceError(InputError):
    """A request trace cannot be read, or using it would make the plan a lie."""


class ScenarioError(InputError):
    """A scenario field or flag is unknown, out of range or inconsistent."""


class CatalogueError(InputError):
    """A GPU or model is unknown, or a config.json cannot be understood."""


class ProfileError(InputError):
    """A latency or acceptance profile is malformed or does not cover the question."""


class CapacityError(InputError):
    """Weights, drafter and cache do not fit the memory of the deployment."""


class StoreError(InputError):
    """The results database cannot be used as asked."""


class InvariantError(SpecsimError):
    """A law of the simulator was broken; please report it with the seed."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the candidate closest to `word`, or `""` when none is close."""
    names = list(candidates)
    lowered = {name.lower(): name for name in names}
    hit = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    return f" (did you mean '{lowered[hit[0]]}'?)" if hit else ""
