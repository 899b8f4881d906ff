"""`--profile`: found among files, what ships and what is stored; the deployment that it was measured for stands in for
every flag that is not given.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from specsim.config import Deployment
    from specsim.profiles import LatencyProfile

__all__ = ["StoredProfiles", "called", "points_file", "profile_fills_in"]

_FLAGS = {"target": "target", "gpu": "gpu", "tp": "tp", "weight_dtype": "weight_dtype", "kv_dtype": "kv_dtype",
          "method": "method", "draft": "draft"}  # fmt: skip
"""Field that a profile covers -> name of the click argument."""
_BUILT = {"draft_layers": "layers", "draft_heads": "heads"}
"""Key of `covers` that says how much of its drafter was built -> option of the drafter that asks for as much."""
_LEAST_HASH = 4
"""Fewest digits by which a stored profile is called."""
_MOST_NAMED = 8
"""Most stored profiles that an error names."""


@dataclass(frozen=True)
class StoredProfiles:
    """Profiles of the results database, beside files and those that ship."""

    db: str | None = None
    """Path or URL; None: the usual one, if it is there."""
    read: bool = True
    """False: the database is not to be read."""

    def find(self, name: str) -> LatencyProfile:
        """A shipped profile, one of a file, or a stored one by its name or the beginning of its hash.

        Raises:
            ProfileError: there is none of that name, with the names that there are, or several.
        """
        from scenarios.lookup import one_line
        from scenarios.profiles import load_profile, profile_names
        from specsim.errors import ProfileError, nearest

        if name in profile_names() or os.path.exists(os.path.expanduser(name)):
            return load_profile(name)
        known = self.profiles if self.read else []
        found = [p for p in known if p.name == name or (len(name) >= _LEAST_HASH and p.sha256.startswith(name))]
        if len(found) == 1:
            return found[0]
        place = f"profile '{one_line(name)}'"
        if found:
            raise ProfileError(f"{place} fits {len(found)} stored ones; give the beginning of its hash: "
                               f"{', '.join(p.sha256[:12] for p in found[:_MOST_NAMED])}")  # fmt: skip
        names = [f"{p.name} ({p.sha256[:12]})" for p in known if p.kind != "analytic"]
        more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        stored = f"stored are {', '.join(names[:_MOST_NAMED]) or 'none'}{more}"
        if not self.read:
            stored = "the database is not read (--no-store)"
        raise ProfileError(
            f"{place}: no such file, none that ships{nearest(name, profile_names())} and none that is stored; shipped "
            f"ones are {', '.join(profile_names())}; {stored}; see specsim profile list"
        )

    def profile_of(self, deployment: Deployment, folder: Path) -> LatencyProfile | None:
        """The profile that a deployment names; None: it names none.

        A path starts at `folder`; a name is one that ships or is stored.

        Raises:
            ProfileError: see `find`.
        """
        from scenarios.measured_costs import profile_of
        from scenarios.profiles import profile_names

        name = deployment.profile
        if name is None or name in profile_names() or os.path.exists(folder / os.path.expanduser(name)):
            return profile_of(deployment, folder)
        return self.find(name)

    @cached_property
    def profiles(self) -> list[LatencyProfile]:
        """All of them, read once; none when there is no database and none was named."""
        from db.store import Store
        from specsim.errors import StoreError
        from specsim.profiles import LatencyProfile

        try:
            with Store.open(self.db, mode="read") as store:
                return [LatencyProfile.from_dict(row["body"], place=f"profile {row['sha256'][:12]}")
                        for row in store.list_profiles()]  # fmt: skip
        except StoreError:
            if self.db is not None:
                raise
            return []


def profile_fills_in(values: dict[str, Any], kept: StoredProfiles) -> None:
    """Complete the flags of a command from `--profile`, if it is there.

    A file's path is made to start at the working directory, and a stored profile is called by its hash.

    Raises:
        ProfileError: there is no such profile, or it is malformed.
    """
    name = values.get("profile")
    if name is None:
        return
    from scenarios.measured_costs import deployment_of

    profile = kept.find(name)
    values["profile"] = called(name, profile)
    for field, value in deployment_of(profile).items():
        if values.get(_FLAGS[field]) is None:
            values[_FLAGS[field]] = value
    if values.get("method") == profile.covers.get("method") and not values.get("draft_option"):
        built = tuple(f"{option}={profile.covers[key]}" for key, option in _BUILT.items() if profile.covers.get(key))
        if built:
            values["draft_option"] = built


def called(name: str, profile: LatencyProfile) -> str:
    """How a record names a profile that was found by `name`: its file from the root, its name, or its hash."""
    from scenarios.profiles import profile_names

    if os.path.isfile(os.path.expanduser(name)):
        return os.path.abspath(os.path.expanduser(name))
    return name if name in profile_names() else profile.sha256[:12]


def points_file(name: str) -> Path | None:
    """The points beside the file of a profile that was found by `name`; None: there are none, or it is a stored one."""
    from scenarios.profiles import points_beside, profile_names

    on_disk = name in profile_names() or os.path.isfile(os.path.expanduser(name))
    return points_beside(name) if on_disk else None
