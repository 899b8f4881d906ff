"""What the pages say of the profiles that ship with specsim."""

from __future__ import annotations

from scenarios.profiles import load_profile, profile_names

__all__ = ["shipped_table"]


def shipped_table() -> str:
    """A row a profile: points, held-out error, noise."""
    rows = [
        "| profile | points | held out | median error | 95 % below | noise of a point |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in profile_names():
        e = load_profile(name).evidence
        if e is not None:
            rows.append(
                f"| `{name}` | {e.points} | {e.holdout_points} | {e.holdout_median:.1%} | {e.holdout_p95:.1%} | "
                f"±{e.noise:.1%} |"
            )
    return "\n".join(rows)
