"""Which code makes the results: a hash of the simulator's sources, and the libraries whose arithmetic it uses."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import specsim

__all__ = ["arithmetic", "code_version"]

_NO_RESULTS_IN = ("cli", "executors", "explain", "report")
"""Parts of the package whose code cannot change a metric."""


def code_version() -> str:
    """Release and a hash of the simulator's sources, so that edited code never meets runs of the old one."""
    home = Path(specsim.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(home.rglob("*.py")):
        inside = path.relative_to(home)
        if inside.parts[0] not in _NO_RESULTS_IN:
            digest.update(inside.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{specsim.__version__}+{digest.hexdigest()[:12]}"


def arithmetic() -> str:
    """The code and the libraries that compute with it: equal on two machines, equal results to the last digit."""
    return ", ".join([f"specsim {code_version()}", *(f"{name} {version(name)}" for name in ("numpy", "numba"))])
