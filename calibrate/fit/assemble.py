"""A latency profile from a points file: terms of target and drafter, host times, hold-out error, range.

Models: passes by `calibrate.fit.solve`; acceptance, lookup and host times as non-negative straight lines. A model that
was measured by layer is composed: everything that belongs to layers is scaled to all of them, head and embedding stay.
Leaves out: collectives, which one device cannot measure; the caller adds them from link data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from calibrate.fit.launches import captured_terms, launch_words
from calibrate.fit.law import Architecture
from calibrate.fit.predict import predicted_s
from calibrate.fit.priors import ceilings_of
from calibrate.fit.solve import Fitted, fit_pass
from calibrate.points import Point, Setup
from specsim.drafters import Drafter, find_drafter
from specsim.errors import ProfileError
from specsim.evidence import Evidence
from specsim.profiles import LatencyProfile, PassCost, ProfileKind
from specsim.shapes import ModelShape

__all__ = ["FittedProfile", "architecture_of", "fit_profile", "holdout_errors", "outside_layers_s", "passes_of",
           "scaled_to_layers"]  # fmt: skip

_PASSES = ("body", "head", "whole")
_LEAST_ERROR = 0.01
"""One-sigma error of a step that is stated at least: no measurement here is better than that."""


@dataclass(frozen=True)
class FittedProfile:
    """A profile, and the fits behind it by role (target, draft)."""

    profile: LatencyProfile
    fits: Mapping[str, Fitted]


def architecture_of(shape: Mapping[str, Any], layers: int = 0) -> Architecture:
    """Counts of a shape, or of its first `layers` layers, that the law needs."""
    total, windowed = int(shape.get("num_layers", 1)), int(shape.get("windowed_layers", 0))
    if layers and layers < total:
        windowed = round(windowed * layers / total)
        total = layers
    moe = bool(shape.get("moe_layers", 0))
    return Architecture(
        num_experts=int(shape.get("num_experts", 0)) if moe else 0,
        experts_per_token=int(shape.get("experts_per_token", 0)) if moe else 0,
        full_layers=total - windowed,
        windowed_layers=windowed,
        window_tokens=int(shape.get("window_tokens", 0)),
    )


def fit_profile(
    setup: Setup,
    points: Sequence[Point],
    *,
    method: str,
    name: str,
    kind: ProfileKind = "measured",
    points_sha256: str = "",
    options: Mapping[str, int] | None = None,
    priors: Mapping[str, Mapping[str, float]] | None = None,
) -> FittedProfile:
    """The profile of one method from the points of its target and drafter.

    Args:
        method: a drafter of `specsim.drafters`, or `none`.
        options: of that drafter.
        priors: target, draft -> expected terms in seconds, from a roofline.

    Raises:
        ProfileError: points that are missing for the method, with what to measure.
    """
    drafter = None if method == "none" else find_drafter(method)
    if drafter is None and method != "none":
        raise ProfileError(f"method '{method}' is unknown; see specsim drafters list")
    if method != "none" and setup.methods and method not in setup.methods:
        raise ProfileError(
            f"the points are of {', '.join(setup.methods)}, not of {method}; measure it, or fit one of those"
        )
    roles = ["target"]
    if drafter is not None and drafter.runs_model:
        roles.append("draft")
    fits: dict[str, Fitted] = {}
    costs: dict[str, PassCost] = {}
    for role in roles:
        own = passes_of(points, role, setup)
        if not own:
            raise ProfileError(
                f"no points of the {role}; method {method} needs them, so measure again with --method {method}"
            )
        built = setup.measured_layers if role == "target" else setup.draft_layers
        architecture = architecture_of(setup.shapes.get(role, {}), built)
        fits[role] = fit_pass(own, architecture, prior=(priors or {}).get(role), place=f"points of the {role}")
        costs[role] = fits[role].pass_cost
    if setup.is_by_layer:
        outside = outside_layers_s(points, setup)
        costs["target"] = scaled_to_layers(costs["target"], setup.num_layers / setup.measured_layers, outside)
    lines, costs = _with_sampling(_host_lines(points), costs, points, drafter)
    profile = LatencyProfile(
        name=name,
        kind=kind,
        target=costs["target"],
        draft=costs.get("draft"),
        draft_mode="none" if drafter is None else drafter.mode,
        relative_error=_LEAST_ERROR,
        covers=_covers(setup, points, method),
    )
    captured = captured_terms(points)
    if setup.is_by_layer and captured:
        captured["uncaptured_s"] *= setup.num_layers / setup.measured_layers
    profile = replace(profile, **lines, **captured)  # type: ignore[arg-type]
    if drafter is not None and drafter.runs_model:
        profile = replace(
            profile,
            draft_catches_up=drafter.catches_up,
            draft_rows_fixed=drafter.extra_rows.fixed,
            draft_rows_per_draft=drafter.extra_rows.each,
            at_zero_drafts="synced" if drafter.catches_up else "skipped",
        )
    if drafter is not None and drafter.verify_skip is not None and setup.shapes.get("target"):
        profile = replace(profile, verify_skip_share=_verify_skip(setup, drafter, options or {}))
    profile = _with_host(profile, points, method)
    evidence = _evidence(profile, fits, points, setup, points_sha256)
    error = math.hypot(evidence.holdout_median / 0.6745, 0.0) if evidence.holdout_points else 0.05
    return FittedProfile(
        replace(
            profile,
            evidence=evidence,
            relative_error=max(_LEAST_ERROR, round(error, 4)),
            sources=_sources(setup, evidence, profile),
            notes=_notes(setup, evidence, profile, points),
        ),
        fits,
    )


def passes_of(points: Sequence[Point], role: str, setup: Setup) -> list[Point]:
    """The passes of one model to which its terms are fitted, in order; those at another depth are left out."""
    built = setup.measured_layers if role == "target" and setup.is_by_layer else 0
    return [p for p in points if p.role == role and p.kind in _PASSES and (p.kind != "body" or p.layers == built)]


def outside_layers_s(points: Sequence[Point], setup: Setup) -> float:
    """Seconds of a pass outside of its layers, from passes that were measured at two depths; 0 without such."""
    deep = {p.parts: p for p in points if p.role == "target" and p.kind == "body" and p.layers == setup.measured_layers}
    found = []
    for point in points:
        whole = deep.get(point.parts)
        if point.role == "target" and point.kind == "body" and whole is not None and point.layers < whole.layers:
            each = (whole.seconds - point.seconds) / (whole.layers - point.layers)
            found.append(point.seconds - point.layers * each)
    return max(0.0, float(np.median(found))) if found else 0.0


def scaled_to_layers(cost: PassCost, ratio: float, outside_s: float = 0.0) -> PassCost:
    """A pass with `ratio` times the layers: everything but output head, sampling, and `outside_s` of fixed time."""
    fixed = max(0.0, cost.fixed_s - outside_s)
    weights = max(0.0, cost.weights_s - (outside_s - (cost.fixed_s - fixed)))
    scaled = ("token_s", "kv_token_s", "kv_pair_s", "decode_kv_pair_s", "request_s", "windowed_kv_token_s",
              "windowed_kv_pair_s", "experts_s", "collective_token_s")  # fmt: skip
    values = {name: getattr(cost, name) * ratio for name in scaled}
    return replace(cost, weights_s=weights * ratio, fixed_s=fixed * ratio + outside_s, **values)


def _with_sampling(
    lines: Mapping[str, float], costs: Mapping[str, PassCost], points: Sequence[Point], drafter: Drafter | None
) -> tuple[dict[str, float], dict[str, PassCost]]:
    """Sampling: each row belongs to its pass, what does not grow with rows to the step, or to a pass of the drafter;
    steps that were measured with the drafter hold it already, where there are such."""
    lines, costs = dict(lines), dict(costs)
    for role, cost in costs.items():
        rows = [(p.rows, p.seconds) for p in points if p.kind == "sample" and p.role == role and not p.is_holdout]
        if not rows:
            continue
        start, slope = _line(rows)
        costs[role] = replace(cost, sample_row_s=slope)
        if role == "target":
            lines["host_s"] = start
        elif drafter is None or not _has_host(points, drafter.name):
            costs[role] = replace(costs[role], fixed_s=cost.fixed_s + start)
    return lines, costs


def _has_host(points: Sequence[Point], method: str) -> bool:
    return any(point.kind == "host" and point.method == method for point in points)


def _host_lines(points: Sequence[Point]) -> dict[str, float]:
    """Terms of accepting: a fixed part and one per request."""
    accept = [(len(p.parts), p.seconds) for p in points if p.kind == "accept" and not p.is_holdout]
    if not accept:
        return {}
    start, each = _line(accept)
    return {"speculation_host_s": start, "speculation_request_s": each}


def _line(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(seconds at 0, seconds each), both at least 0, by relative error."""
    x, y = np.array([row[0] for row in rows], dtype=float), np.array([row[1] for row in rows])
    (start, slope), _ = nnls(np.stack([np.ones_like(x), x], axis=1) / y[:, None], np.ones_like(x))
    return float(start), float(slope)


def _with_host(profile: LatencyProfile, points: Sequence[Point], method: str) -> LatencyProfile:
    """Host times from steps of the engine: without speculation first, then what the method adds."""
    plain = [p for p in points if p.kind == "host" and not p.method]
    if not plain:
        return profile
    profile = replace(profile, host_s=0.0, host_request_s=0.0)
    start, each = _beyond(profile, plain)
    profile = replace(profile, host_s=start, host_request_s=each)
    own = [p for p in points if p.kind == "host" and p.method == method]
    if not own:
        return profile
    start, each = _beyond(profile, own)
    if profile.draft is None:
        return replace(profile, speculation_host_s=profile.speculation_host_s + start, lookup_request_s=each)
    return replace(
        profile,
        speculation_host_s=profile.speculation_host_s + start,
        speculation_request_s=profile.speculation_request_s + each,
    )


def _beyond(profile: LatencyProfile, points: Sequence[Point]) -> tuple[float, float]:
    """(seconds, seconds each request) that host points take beyond what the profile has already; at least 0."""
    requests = np.array([len(p.parts) for p in points], dtype=float)
    seconds = np.array([p.seconds for p in points])
    rest = seconds - np.array([predicted_s(profile, p) or 0.0 for p in points])
    design = np.stack([np.ones_like(requests), requests], axis=1) / seconds[:, None]
    found = nnls(design, np.maximum(rest, 0.0) / seconds)[0]
    return float(found[0]), float(found[1])


def _verify_skip(setup: Setup, drafter: Any, options: Mapping[str, int]) -> float:
    shape = ModelShape(**{**setup.shapes["target"], "doubtful": tuple(setup.shapes["target"].get("doubtful", ()))})
    if not setup.facts.get("verify_skips"):
        return 0.0
    share: float = drafter.verify_skip(shape, drafter.chosen(shape, options))
    return share


def _covers(setup: Setup, points: Sequence[Point], method: str) -> dict[str, str]:
    dates = sorted(point.utc[:10] for point in points if point.utc)
    found = {
        "target": setup.target,
        "gpu": setup.device,
        "tp": str(setup.tp),
        "weight_dtype": setup.dtype,
        "kv_dtype": setup.dtype,
        "method": method,
        "attention_backend": setup.attention_backend,
        "engine": setup.engine,
        "clock": {"wall": "wall", "device": "device events", "cpu": "processor time"}.get(setup.clock, setup.clock),
    }
    drafter = None if method == "none" else find_drafter(method)
    runs_model = drafter is not None and drafter.runs_model
    if setup.draft and runs_model:
        found |= {"draft": setup.draft, "draft_tp": str(setup.tp), "draft_weight_dtype": setup.dtype,
                  "draft_kv_dtype": setup.dtype}  # fmt: skip
    if launch_words(points):
        found["launch"] = launch_words(points)
    if setup.threads:
        found["threads"] = str(setup.threads)
    if dates:
        found["date"] = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    if setup.draft_layers and runs_model:
        found["draft_layers"] = str(setup.draft_layers)
    if drafter is not None and drafter.mode == "heads" and "draft" in setup.shapes:
        found["draft_heads"] = str(setup.shapes["draft"]["num_layers"])
    return found | {name: text for name, text in setup.facts.items() if name not in (*found, "memory_bytes")}


def _evidence(
    profile: LatencyProfile, fits: Mapping[str, Fitted], points: Sequence[Point], setup: Setup, sha256: str
) -> Evidence:
    own_method = ("", profile.covers.get("method"))
    timed = [p for p in points if p.role in fits or (p.role == "engine" and p.method in own_method)]
    noises = [p.noise for p in timed if not math.isnan(p.noise)]
    errors = holdout_errors(profile, fits, points, setup)
    decode = [p for p in timed if p.parts and not p.is_prefill and p.kind in ("body", "whole") and p.role == "target"]
    passes = [p for p in timed if p.parts and p.role == "target"]
    ranges: dict[str, tuple[float, float]] = {}
    if decode:
        ranges["requests"] = _range([len(p.parts) for p in decode])
        ranges["width"] = _range([max(n for n, _ in p.parts) for p in decode])
        ranges["step_tokens"] = _range([p.tokens for p in passes])
        ranges["context_tokens"] = _range([max(n + context for n, context in p.parts) for p in passes])
    flagged = []
    for role, fit in fits.items():
        own = passes_of(points, role, setup)
        flagged += [f"{own[n].label}: {reason}" for n, reason in fit.flagged.items()]
    intervals = {f"{role}.{term}": pair for role, fit in fits.items() for term, pair in fit.intervals().items()}
    ceilings = ceilings_of(points)
    if "memory_bytes" in setup.facts:
        ceilings["memory_bytes"] = float(setup.facts["memory_bytes"])
    return Evidence(
        points=sum(not p.is_holdout for p in timed),
        holdout_points=len(errors),
        holdout_median=_quantile(errors, 0.5),
        holdout_p95=_quantile(errors, 0.95),
        noise=_quantile(noises, 0.5),
        noise_p95=_quantile(noises, 0.95),
        drift=max((_drift([p.reference_s for p in timed if p.role == role]) for role in fits), default=0.0),
        flagged=tuple(flagged),
        ranges=ranges,
        intervals=intervals,
        ceilings=ceilings,
        references={role: (fit.reference_s, fit.drift_share) for role, fit in fits.items() if fit.reference_s > 0},
        reference_parts=_reference_parts([p for p in timed if p.role in fits]),
        points_sha256=sha256,
    )


def holdout_errors(
    profile: LatencyProfile, fits: Mapping[str, Fitted], points: Sequence[Point], setup: Setup
) -> list[float]:
    """Relative errors of the profile at held-out points, each as of the drift of the machine when it was measured.

    A model measured by layer is compared on the layers that were built.
    """
    found = []
    part = profile
    if setup.is_by_layer:
        part = replace(profile, target=fits["target"].pass_cost)
    for point in points:
        if not point.is_holdout:
            continue
        seconds = predicted_s(part, point)
        fit = fits.get("draft" if point.role == "draft" else "target")
        if seconds is None or fit is None:
            continue
        found.append(abs(seconds * float(fit.drift([point])[0]) / point.seconds - 1.0))
    return found


def _reference_parts(points: Sequence[Point]) -> dict[str, str]:
    """Role -> the reference point beside all its points; none where they do not tell, or where it changed."""
    found: dict[str, set[str]] = {}
    for point in points:
        if point.reference_s > 0:
            found.setdefault(point.role, set()).add(point.reference)
    return {role: words for role, (words, *more) in found.items() if words and not more}


def _drift(references: Sequence[float]) -> float:
    """Spread of the reference point: 95th over 5th percentile, less 1."""
    known = [seconds for seconds in references if seconds > 0]
    return _quantile(known, 0.95) / _quantile(known, 0.05) - 1.0 if known else 0.0


def _range(values: Sequence[float]) -> tuple[float, float]:
    return float(min(values)), float(max(values))


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0


def _sources(setup: Setup, evidence: Evidence, profile: LatencyProfile) -> dict[str, str]:
    how = f"fitted to {evidence.points} points measured with {setup.engine} on {setup.device}"
    return {"target": how, "draft": how, "host": how} if profile.draft else {"target": how, "host": how}


def _notes(setup: Setup, evidence: Evidence, profile: LatencyProfile, points: Sequence[Point]) -> tuple[str, ...]:
    notes = []
    if evidence.holdout_points:
        notes.append(
            f"Measured: {evidence.points} points in the fit; {evidence.holdout_points} held out are met within "
            f"{evidence.holdout_median:.1%} (median) and {evidence.holdout_p95:.1%} (95 %), at a noise of "
            f"±{evidence.noise:.1%}."
        )
    else:
        notes.append(f"Measured: {evidence.points} points, none held out, so that the error of the fit is not known.")
    if evidence.flagged:
        notes.append(f"Flagged: {'; '.join(evidence.flagged)}.")
    if setup.is_by_layer:
        notes.append(
            f"Measured by layer: {setup.measured_layers} of {setup.num_layers} layers ran, all are scaled from those."
        )
    if not any(point.is_prefill for point in points):
        notes.append("Prompt chunks were not measured: their attention is left out.")
    method = profile.covers.get("method", "none")
    if not any(point.kind == "host" for point in points):
        notes.append("Host time of a step was not measured beyond sampling.")
    elif method != "none" and not _has_host(points, method):
        notes.append("What drafting adds on the host was not measured: it counts as nothing.")
    drafter = None if method == "none" else find_drafter(method)
    if drafter is not None and drafter.mode == "heads":
        notes += _of_heads(setup, points)
    elif drafter is not None and drafter.loads == "head":
        notes.append("The head has random weights and projects the target's hidden states in every pass of a round.")
    return tuple(notes)


def _of_heads(setup: Setup, points: Sequence[Point]) -> list[str]:
    """Sentences about heads that run at once."""
    most = max((p.drafts for p in points if p.kind == "whole" and p.role == "draft"), default=0)
    notes = [
        f"Up to {most} heads were measured at once; a round of fewer drafts runs fewer, each for the terms of 'draft'."
    ]
    shape = setup.shapes.get("draft", {})
    if shape.get("draft_vocab_size") or shape.get("intermediate_size") != shape.get("hidden_size"):
        notes.append(
            "Memory is planned for heads of one residual block over the whole vocabulary, which these are not."
        )
    return notes
