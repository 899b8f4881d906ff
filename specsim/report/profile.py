"""A latency profile as text: what it holds for, its terms with intervals, how it meets the points it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields

from calibrate.fit.predict import predicted_s
from calibrate.points import Point
from specsim.evidence import RANGES
from specsim.latency import StepCost
from specsim.profiles import LatencyProfile, PassCost
from specsim.report.text import Page, number, percent, plus_minus

__all__ = ["comparison_text", "errors_at", "profile_text"]

_STEP_TERMS = ("host_s", "host_request_s", "speculation_host_s", "speculation_request_s", "loaded_host_s",
               "loaded_request_s", "lookup_request_s", "mixed_s", "uncaptured_s", "switch_s")  # fmt: skip
_PLOTTED = ("body", "head", "whole", "draft_round", "host")
_ROWS, _COLUMNS = 11, 72
_MOST_POINTS = 24
_UNKNOWN_RATIO = 100.0
"""Ends of an interval further apart than this say that no point tells the term from others."""
_BATCHES, _WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128), (0, 1, 3, 5)


def profile_text(profile: LatencyProfile, *, points: Sequence[Point] = (), full: bool = False) -> str:
    """Everything about one profile; with its points, the error of the fit at each."""
    page = Page()
    page.heading(f"Latency profile: {profile.name}")
    covers = [(name, text) for name, text in profile.covers.items()]
    page.facts([("kind", f"{profile.kind}, a step is good to {plus_minus(profile.relative_error)}"), *covers])
    _terms(page, profile)
    _evidence(page, profile)
    shown = errors_at(profile, points)
    if shown:
        _plot(page, shown)
        _points(page, shown, full=full)
    if profile.notes:
        page.heading("Notes")
        for note in profile.notes:
            page.line(f"- {note}")
    return page.text()


def errors_at(profile: LatencyProfile, points: Sequence[Point]) -> list[tuple[Point, float]]:
    """(point, predicted seconds) of passes, rounds and steps, as of the drift of the machine when each was measured.

    Points that ran on part of the layers, and parts of a step that a profile adds up otherwise, are left out.
    """
    references = {} if profile.evidence is None else profile.evidence.references
    found = []
    for point in points:
        predicted = None
        if point.kind in _PLOTTED and not point.layers and not math.isnan(point.seconds):
            predicted = predicted_s(profile, point)
        if predicted is None or predicted <= 0:
            continue
        reference_s, share = references.get(point.role, (0.0, 0.0))
        if reference_s > 0 and point.reference_s > 0:
            predicted *= (point.reference_s / reference_s) ** share
        found.append((point, predicted))
    return found


def _terms(page: Page, profile: LatencyProfile) -> None:
    page.heading("Terms")
    intervals = {} if profile.evidence is None else profile.evidence.intervals
    rows = []
    for role, name, value in _values(profile):
        low, high = intervals.get(f"{role}.{name}", (0.0, 0.0))
        unit = "s" if name.endswith("_s") else ""
        interval = "" if not high else f"{_si(low, unit)} to {_si(high, unit)}"
        if high and high > _UNKNOWN_RATIO * low:
            interval = "not told apart from other terms"
        rows.append((role, name, _si(value, unit), interval))
    page.table(("of", "term", "value", "95 % interval"), rows, left=2, wrapped=True)
    for role, cost in (("target", profile.target), ("draft", profile.draft)):
        if cost is not None and cost.size_factors:
            told = ", ".join(f"{size}: {factor:.2f}" for size, factor in cost.size_factors)
            page.line(f"{role}: factor of matrix work by tokens: {told}")


def _values(profile: LatencyProfile) -> Iterator[tuple[str, str, float]]:
    for role, cost in (("target", profile.target), ("draft", profile.draft)):
        if cost is None:
            continue
        for f in fields(PassCost):
            value = getattr(cost, f.name)
            of_experts = f.name in ("num_experts", "experts_per_token", "expert_sharing") and not cost.num_experts
            if isinstance(value, int | float) and value and not of_experts:
                yield role, f.name, float(value)
    for name in _STEP_TERMS:
        if getattr(profile, name):
            yield "step", name, float(getattr(profile, name))


def _si(value: float, unit: str) -> str:
    if not unit or value == 0:
        return f"{value:.3g}"
    for scale, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}s"
    return f"{value * 1e12:.3g} ps"


def _evidence(page: Page, profile: LatencyProfile) -> None:
    e = profile.evidence
    if e is None:
        return
    page.heading("Evidence")
    held = f"{e.holdout_points} points: median {percent(e.holdout_median)}, 95 % below {percent(e.holdout_p95)}"
    facts = []
    if profile.kind == "transferred":
        page.line(f"Of the measurement on {profile.covers.get('measured_on', 'another GPU')}:")
    facts += [
        ("points in the fit", f"{e.points}, noise ±{percent(e.noise)} (95 %: ±{percent(e.noise_p95)})"),
        ("error at held-out", held if e.holdout_points else "none held out"),
        ("drift meanwhile", f"{percent(e.drift)} of the reference point"),
    ]
    facts += [(RANGES[name], f"{low:,.0f} to {high:,.0f}") for name, (low, high) in e.ranges.items()]
    if "copy_bytes_per_s" in e.ceilings:
        facts.append(("copy bandwidth", f"{e.ceilings['copy_bytes_per_s'] / 1e9:,.1f} GB/s"))
    if "matrix_flops_per_s" in e.ceilings:
        facts.append(("matrix rate", f"{e.ceilings['matrix_flops_per_s'] / 1e12:,.3g} TFLOP/s"))
    page.facts(facts)


def _plot(page: Page, shown: Sequence[tuple[Point, float]]) -> None:
    """Error of the fit by measured seconds: `o` held out, `.` in the fit."""
    page.heading("Fit over measured, by measured time (o held out, . in the fit)")
    logs = [math.log10(point.seconds) for point, _ in shown]
    low, high = min(logs), max(logs)
    errors = [predicted / point.seconds - 1.0 for point, predicted in shown]
    largest = min(0.5, max(0.05, *(abs(error) for error in errors)))
    grid = [[" "] * _COLUMNS for _ in range(_ROWS)]
    grid[_ROWS // 2] = ["-"] * _COLUMNS
    order = sorted(zip(shown, logs, errors, strict=True), key=lambda item: item[0][0].is_holdout)
    for (point, _), log, error in order:
        column = 0 if high == low else round((log - low) / (high - low) * (_COLUMNS - 1))
        row = round((1 - max(-1.0, min(1.0, error / largest))) / 2 * (_ROWS - 1))
        grid[row][column] = "o" if point.is_holdout else "."
    for n, cells in enumerate(grid):
        label = {0: f"{largest:+.0%}", _ROWS // 2: "0%", _ROWS - 1: f"{-largest:+.0%}"}.get(n, "")
        page.verbatim(f"  {label:>6} |{''.join(cells)}".rstrip())
    left, right = f"{10**low * 1e3:.3g} ms", f"{10**high * 1e3:.3g} ms"
    page.verbatim(f"  {'':6}  {left}{right:>{_COLUMNS - len(left)}}")


def _points(page: Page, shown: Sequence[tuple[Point, float]], *, full: bool) -> None:
    page.heading("Measured points" if full else "Measured points furthest from the fit")
    order = sorted(shown, key=lambda item: -abs(item[1] / item[0].seconds - 1.0))
    rows = []
    for point, predicted in shown if full else order[:_MOST_POINTS]:
        roofline = "-" if math.isnan(point.roofline) else percent(point.roofline)
        noise = "-" if math.isnan(point.noise) else f"±{percent(point.noise)}"
        rows.append(
            (
                f"{point.label}{' (held out)' if point.is_holdout else ''}", number(point.seconds * 1e3), noise,
                number(predicted * 1e3), f"{predicted / point.seconds - 1:+.1%}", roofline,
            )
        )  # fmt: skip
    page.table(("requests x tokens @ cached", "ms", "noise", "fit ms", "error", "of roofline"), rows)
    if not full and len(shown) > _MOST_POINTS:
        page.line(f"{len(shown) - _MOST_POINTS} more lie nearer; --full shows all.")


def comparison_text(a: LatencyProfile, b: LatencyProfile, *, context_tokens: int = 512) -> str:
    """Two profiles side by side: milliseconds of decode steps by batch and drafts, and the terms that differ."""
    page = Page()
    page.heading("Two latency profiles")
    page.facts([("A", f"{a.name} ({a.kind})"), ("B", f"{b.name} ({b.kind})")])
    differing = [
        (name, a.covers.get(name, "-"), b.covers.get(name, "-"))
        for name in dict.fromkeys([*a.covers, *b.covers])
        if a.covers.get(name) != b.covers.get(name)
    ]
    if differing:
        page.table(("differs in", "A", "B"), differing, left=3, wrapped=True)
    page.heading(f"Decode steps at {context_tokens} cached tokens a request: A ms, B ms, B over A")
    costs = StepCost(a), StepCost(b)
    rows = []
    for batch in _BATCHES:
        row = [str(batch)]
        for k in _WIDTHS:
            first, second = (cost.decode_step_s(batch, context_tokens, k) for cost in costs)
            row.append(f"{number(first * 1e3)} {number(second * 1e3)} {second / first:.2f}" if first else "-")
        rows.append(tuple(row))
    page.table(("batch", *(f"k={k}" for k in _WIDTHS)), rows)
    for letter, profile in (("A", a), ("B", b)):
        if profile.evidence is not None and "requests" in profile.evidence.ranges:
            page.line(f"{letter} was measured up to {profile.evidence.ranges['requests'][1]:,.0f} requests; beyond, it "
                      f"is extrapolated.")  # fmt: skip
    page.heading("Terms")
    values = [{(role, name): value for role, name, value in _values(profile)} for profile in (a, b)]
    terms = []
    for role, name in dict.fromkeys([*values[0], *values[1]]):
        first, second = values[0].get((role, name), 0.0), values[1].get((role, name), 0.0)
        unit = "s" if name.endswith("_s") else ""
        ratio = f"{second / first:.2f}" if first and second else "-"
        terms.append((role, name, _si(first, unit), _si(second, unit), ratio))
    page.table(("of", "term", "A", "B", "B over A"), terms, left=2)
    return page.text()
