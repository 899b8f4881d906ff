"""Results of `specsim validate serve` and `bench` that the page of validation prints, one JSON object a line."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from specsim.errors import ScenarioError

__all__ = ["SCHEMA_VERSION", "read_served", "shipped_served"]

SCHEMA_VERSION = 1
_NEEDED = {
    "serve": ("subject", "date", "rows", "speedups", "crossovers", "replay", "verdict", "checks", "trace", "profile"),
    "bench": ("subject", "date", "rows", "speedups", "verdict", "checks", "profile", "luck"),
}


def shipped_served() -> list[dict[str, Any]]:
    """The results that come with specsim, in the order in which they were made."""
    path = Path(str(files("scenarios").joinpath("published/served.jsonl")))
    return read_served(path) if path.is_file() else []


def read_served(path: Path) -> list[dict[str, Any]]:
    """Results of a file that `--append-to` grew.

    Raises:
        ScenarioError: the file, the line, and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            raise ScenarioError(
                f"{place}: not JSON; each line is what `specsim validate serve --json` or `bench --json` prints"
            ) from None
        if not isinstance(result, dict) or result.get("schema_version") != SCHEMA_VERSION:
            raise ScenarioError(f"{place}: schema_version is not {SCHEMA_VERSION}; serve again with this specsim")
        kind = result.get("kind", "serve")
        if kind not in _NEEDED:
            raise ScenarioError(f"{place}: kind is {kind!r}; it must be serve or bench")
        missing = [name for name in _NEEDED[kind] if name not in result]
        if missing:
            raise ScenarioError(f"{place}: lacks {', '.join(missing)}; it is no result of `specsim validate {kind}`")
        found.append(result)
    return found
