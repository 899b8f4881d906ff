"""Latency profiles by name or file: those that ship with specsim lie in `scenarios/profiles`, each with its points."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

from scenarios.lookup import one_line
from specsim.errors import ProfileError, nearest
from specsim.profiles import LatencyProfile

__all__ = ["POINTS_SUFFIX", "load_profile", "points_beside", "profile_names", "profile_path"]

POINTS_SUFFIX = ".points.jsonl"
"""A profile `x.json` was fitted to the points in `x.points.jsonl` beside it; `x-METHOD.json`, one of several methods
that were measured together, to the same."""
_LARGEST_BYTES = 4 << 20


def _home() -> Path:
    return Path(str(files("scenarios").joinpath("profiles")))


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in _home().glob("*.json")))


def profile_path(name_or_path: str) -> Path:
    """The file of a shipped profile, or the file of that name (`./name` always means a file).

    Raises:
        ProfileError: neither exists.
    """
    path = Path(os.path.expanduser(name_or_path))
    if name_or_path in profile_names() and not path.is_file():
        return _home() / f"{name_or_path}.json"
    if not path.is_file():
        what = "no such file, and no shipped profile"
        if path.exists():  # reading a pipe could wait for ever
            what = "is a directory, a pipe or a device"
        names = profile_names()
        raise ProfileError(
            f"profile '{one_line(name_or_path)}': {what}{nearest(name_or_path, names)}; shipped ones are "
            f"{', '.join(names) or 'none'}"
        )
    return path


def load_profile(name_or_path: str) -> LatencyProfile:
    """A latency profile from a file, or a shipped one by its name.

    Raises:
        ProfileError: it does not exist, is no profile, or is malformed, with the place.
    """
    path = profile_path(name_or_path)
    place = one_line(str(path))
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ProfileError(f"{place}: larger than 4 MiB, so no latency profile")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{place}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ProfileError(f"{place}: not JSON; give a file that specsim calibrate or specsim profile wrote") from None
    return LatencyProfile.from_dict(data, place=place)


def points_beside(name_or_path: str) -> Path | None:
    """The points file beside a profile's file, if there is one."""
    path = profile_path(name_or_path)
    method = load_profile(str(path)).covers.get("method", "")
    for stem in (path.stem, path.stem.removesuffix(f"-{method}")):
        beside = path.with_name(stem + POINTS_SUFFIX)
        if beside.is_file():
            return beside
    return None
