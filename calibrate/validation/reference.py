"""The point that a profile was calibrated beside, to be timed again while it is held against real serving. No torch."""

from __future__ import annotations

from calibrate.latency.grid import Grid, reference_point
from calibrate.points import Point, read_reference
from specsim.profiles import LatencyProfile

__all__ = ["reference_of"]


def reference_of(profile: LatencyProfile) -> Point | None:
    """The reference point of a profile of a whole model; None where the profile does not say, or where only some layers
    ran, so that the whole model cannot be held against it.

    Profiles from before it was kept are taken to have had the usual one, if they cover it.

    Raises:
        ProfileError: the profile names none that can be read.
    """
    evidence = profile.evidence
    if evidence is None or "target" not in evidence.references:
        return None
    words = evidence.reference_parts.get("target", "")
    if words:
        point = read_reference(words)
        return None if point.layers else point
    usual = reference_point(Grid())
    least = {
        "requests": len(usual.parts),
        "width": max(n for n, _ in usual.parts),
        "context_tokens": 2 * max(n + context for n, context in usual.parts),
    }
    by_layer = any(note.startswith("Measured by layer") for note in profile.notes)
    covered = all(evidence.ranges.get(name, (0, 0))[1] >= most for name, most in least.items())
    return usual if covered and not by_layer else None
