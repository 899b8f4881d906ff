"""Where the results of `specsim validate serve` and `bench` go: the database, and a file of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specsim.profiles import LatencyProfile

__all__ = ["append_row", "kept_validation"]


def kept_validation(db: str | None, result: dict[str, Any], *, kind: str, profile: LatencyProfile) -> str:
    """Store a result with the profile that predicted it; its id."""
    import specsim
    from db.store import Store
    from specsim.code_version import code_version

    with Store.open(db) as store:
        store.save_profile(profile.sha256, name=profile.name, kind=profile.kind, body=profile.to_dict())
        return store.save_validation(
            result,
            kind=kind,
            subject=result["subject"],
            profile_sha256=profile.sha256,
            code_version=code_version(),
            specsim_version=specsim.__version__,
        )


def append_row(path: str, result: dict[str, Any]) -> None:
    """Add a result to a file of rows; the old file stays until the new one is whole."""
    from specsim.report.files import whole_file

    there = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
    with whole_file("--append-to", path) as out:
        out.write(there + ("\n" if there and not there.endswith("\n") else "") + json.dumps(result) + "\n")
    click.echo(f"{path} has one row more", err=True)
