"""A latency profile carried to another deployment of the same models: each term by the ratio of its rooflines.

Models: what was measured keeps its distance from the roofline, and the roofline moves: reading by bandwidth, matrix
work and attention pairs by compute rate, collectives by the link. Launches and everything on the host stay.
Leaves out: that kernels of another GPU reach another share of its datasheet, which is why the band is wider.
Numbers: two analytic profiles, of where it was measured and of where it goes (`specsim.analytic`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

from specsim.efficiency import GpuFamily
from specsim.errors import ProfileError
from specsim.evidence import Evidence
from specsim.profiles import LatencyProfile, PassCost

__all__ = ["carried", "transfer_error"]

SAME_FAMILY_ERROR = 0.10
OTHER_FAMILY_ERROR = 0.20
OTHER_SPLIT_ERROR = 0.10
OTHER_DTYPE_ERROR = 0.15
"""One-sigma relative error that carrying adds to a step: assumed. Within a family of kernels half of the 20 % or so by
which published GEMM shares of one generation differ; between families nearly that of an analytic profile (25 %), of
which only the part that both GPUs share cancels. No pair of published measurements on two GPUs was found to test it."""

_ALIKE: Mapping[str, tuple[str, ...]] = {
    "weights_s": ("weights_s", "head_weights_s"),
    "token_s": ("token_s",),
    "head_weights_s": ("head_weights_s", "weights_s"),
    "head_row_s": ("head_row_s", "token_s"),
    "sample_row_s": ("head_weights_s", "weights_s"),
    "kv_token_s": ("kv_token_s", "windowed_kv_token_s", "weights_s"),
    "windowed_kv_token_s": ("windowed_kv_token_s", "kv_token_s", "weights_s"),
    "kv_pair_s": ("kv_pair_s", "windowed_kv_pair_s", "token_s"),
    "decode_kv_pair_s": ("decode_kv_pair_s", "kv_pair_s", "windowed_kv_pair_s", "token_s"),
    "windowed_kv_pair_s": ("windowed_kv_pair_s", "kv_pair_s", "token_s"),
    "experts_s": ("experts_s", "weights_s"),
    "collective_token_s": ("collective_token_s",),
}
"""Term of a pass that moves -> terms of the analytic profiles whose ratio it follows, the first that both have."""
_FEATURES = ("captured_tokens_max", "captured_requests", "captured_exactly")
_DESCRIBES = ("target", "gpu", "tp", "weight_dtype", "kv_dtype", "method", "draft", "draft_tp", "draft_weight_dtype",
              "draft_kv_dtype", "draft_layers", "draft_heads", "attention_backend", "engine", "date",
              "measured_on")  # fmt: skip
"""Keys of `covers` that hold for the other device too, or are set anew; the rest describes the machine measured."""
_MARK = ", carried to "


def transfer_error(here: Mapping[str, str], there: Mapping[str, str], families: tuple[GpuFamily, GpuFamily]) -> float:
    """One-sigma relative error that carrying adds, by what differs in the `covers` of two analytic profiles."""
    parts = [0.0]
    if here["gpu"] != there["gpu"]:
        parts.append(SAME_FAMILY_ERROR if families[0] == families[1] else OTHER_FAMILY_ERROR)
    if here["tp"] != there["tp"]:
        parts.append(OTHER_SPLIT_ERROR)
    if here["weight_dtype"] != there["weight_dtype"]:
        parts.append(OTHER_DTYPE_ERROR)
    return math.hypot(*parts)


def carried(
    profile: LatencyProfile,
    *,
    here: LatencyProfile,
    there: LatencyProfile,
    families: tuple[GpuFamily, GpuFamily],
) -> LatencyProfile:
    """The profile as it would be at `there`, labelled transferred; carried back, its terms are the same again.

    Args:
        here: analytic profile of the deployment that `profile` is of.
        there: the same of the deployment that is wanted, with the same models and method.
        families: kernel families of both GPUs; where they differ, how attention verifies is not carried.

    Raises:
        ProfileError: the two analytic profiles do not have the drafter that the profile has.
    """
    if (profile.draft is None) != (here.draft is None) or (here.draft is None) != (there.draft is None):
        raise ProfileError(f"profile {profile.name}: its drafter is not that of the deployment it is carried to")
    origin = profile.covers.get("measured_on", profile.covers.get("gpu", here.covers["gpu"]))
    gpu = there.covers["gpu"]
    changes: dict[str, object] = {"target": _pass(profile.target, here.target, there.target)}
    if profile.draft is not None and here.draft is not None and there.draft is not None:
        changes["draft"] = _pass(profile.draft, here.draft, there.draft)
    kept = {name: text for name, text in profile.covers.items() if name in _DESCRIBES}
    covers = {**kept, "gpu": gpu, "tp": there.covers["tp"], "measured_on": origin}
    if "draft_tp" in kept and "draft_tp" in there.covers:
        covers["draft_tp"] = there.covers["draft_tp"]
    if here.covers["weight_dtype"] != there.covers["weight_dtype"]:
        covers["weight_dtype"] = there.covers["weight_dtype"]
    for name in _FEATURES:  # what the engine chose for the one GPU, it chooses for the other
        if getattr(profile, name) == getattr(here, name):
            changes[name] = getattr(there, name)
    if families[0] != families[1]:
        changes["verify_unsplit_requests"] = there.verify_unsplit_requests
        covers["attention_backend"] = f"{there.covers['attention_backend']} (assumed, not measured)"
    error = transfer_error(here.covers, there.covers, families)
    name, _, _ = profile.name.partition(_MARK)
    moved = _moved(profile.target, changes["target"])  # type: ignore[arg-type]
    return replace(
        profile,
        name=f"{name}{_MARK}{_place(there)}",
        kind="transferred",
        relative_error=round(math.hypot(profile.relative_error, error), 4),
        covers=covers,
        sources={**profile.sources, "transfer": f"ratio of analytic terms of {_place(here)} and {_place(there)}"},
        notes=(*_own_notes(profile), *_notes(profile, here, there, families, origin, error, moved)),
        evidence=None if profile.evidence is None else _evidence(profile, changes),
        **changes,  # type: ignore[arg-type]
    )


def _place(profile: LatencyProfile) -> str:
    tp = profile.covers["tp"]
    return profile.covers["gpu"] + (f" tp {tp}" if tp != "1" else "")


def _pass(own: PassCost, here: PassCost, there: PassCost) -> PassCost:
    values = {name: getattr(own, name) * _ratio(alike, here, there) for name, alike in _ALIKE.items()}
    if not here.collective_token_s:
        values["collective_token_s"] = own.collective_token_s + there.collective_token_s
    # launches stay; what is added or taken is the latency of collectives, and the kernels that quantise
    values["fixed_s"] = max(0.0, own.fixed_s + (there.fixed_s - here.fixed_s))
    return replace(own, **values)


def _ratio(names: tuple[str, ...], here: PassCost, there: PassCost) -> float:
    for name in names:
        before, after = getattr(here, name), getattr(there, name)
        if before and after:
            return float(after / before)
    return 0.0 if names == ("collective_token_s",) else 1.0


def _moved(own: PassCost, other: PassCost) -> dict[str, float]:
    """Factors of the terms that a reader knows, where there are any."""
    named = {"weights_s": "weights", "kv_token_s": "cache", "token_s": "matrix work", "kv_pair_s": "attention pairs",
             "experts_s": "experts", "collective_token_s": "collectives"}  # fmt: skip
    return {
        word: getattr(other, name) / getattr(own, name) for name, word in named.items() if getattr(own, name)
    }  # fmt: skip


_ABOUT = "Carried"
"""How sentences begin that a further transfer replaces."""


def _own_notes(profile: LatencyProfile) -> tuple[str, ...]:
    return tuple(note for note in profile.notes if not note.startswith((_ABOUT, f"Not {_ABOUT.lower()}")))


def _notes(
    profile: LatencyProfile, here: LatencyProfile, there: LatencyProfile, families: tuple[GpuFamily, GpuFamily],
    origin: str, error: float, moved: Mapping[str, float],
) -> list[str]:  # fmt: skip
    factors = ", ".join(f"{word} x{factor:.2f}" for word, factor in moved.items())
    found = [
        f"{_ABOUT} from {origin}, where it was measured, to {_place(there)} by the ratio of datasheet rooflines "
        f"({factors}); launches and host time as measured. That adds ±{error:.0%} to a step."
    ]
    backend = profile.covers.get("attention_backend", "unknown")
    if families[0] != families[1]:
        requests = there.verify_unsplit_requests
        how = f"below {requests:.0f} requests it reads the cache slower" if requests else "it splits the cache"
        found.append(
            f"Not carried: how attention verifies several tokens, since other kernels run there. Measured was "
            f"{backend}, assumed is {there.covers['attention_backend']}, so that {how}. Measure verify at width 1 + k "
            f"there."
        )
    else:
        found.append(
            f"{_ABOUT} as measured: how attention verifies several tokens ({backend}); with another backend or version "
            f"that does not hold."
        )
    if profile.target.size_factors:
        found.append(f"{_ABOUT} as measured: what kernels chosen by size take beside the smooth law.")
    changed = [name for name in _FEATURES if getattr(profile, name) == getattr(here, name) != getattr(there, name)]
    if changed:
        found.append(f"Not carried: the captured graphs, which are those that the engine takes for {_place(there)}.")
    if not here.target.collective_token_s and there.target.collective_token_s:
        found.append("Not carried: collectives, which were not measured and are analytic.")
    own = {*here.notes, *profile.notes}
    facts = [
        note for note in there.notes if note.startswith(("Doubtful figures", "tp ")) or " does not multiply " in note
    ]
    return [*found, *(f"{_ABOUT}: {note}" for note in facts if note not in own)]


def _evidence(profile: LatencyProfile, changes: Mapping[str, object]) -> Evidence:
    """What was measured, with intervals that moved with their terms; ceilings and reference points are not carried."""
    assert profile.evidence is not None
    terms = {f.name for f in fields(PassCost)}
    intervals = {}
    for key, (low, high) in profile.evidence.intervals.items():
        role, _, name = key.partition(".")
        before, after = getattr(profile, role, None), changes.get(role)
        ratio = 1.0
        if isinstance(before, PassCost) and name in terms and getattr(before, name):
            ratio = getattr(after, name) / getattr(before, name)
        intervals[key] = (low * ratio, high * ratio)
    return replace(profile.evidence, intervals=intervals, ceilings={}, references={})
