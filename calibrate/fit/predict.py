"""Seconds of a measured point by a profile, through the very code that simulates: what plots, hold-out errors and
comparisons of profiles look at."""

from __future__ import annotations

from calibrate.points import Point
from specsim.draft_passes import DraftPasses
from specsim.errors import ProfileError
from specsim.latency import StepWork
from specsim.passes import CompiledPass
from specsim.profiles import LatencyProfile, PassCost

__all__ = ["predicted_s", "step_work"]


def predicted_s(profile: LatencyProfile, point: Point) -> float | None:
    """Seconds of a point; None where the profile says nothing of its kind (ceilings, a drafter that it lacks)."""
    if point.kind in ("body", "head", "sample", "whole", "reference"):
        cost = profile.draft if point.role == "draft" else profile.target
        if cost is not None and point.drafts:
            return _heads_s(profile, point)
        return None if cost is None else _pass_s(cost, profile, point)
    requests = len(point.parts)
    if point.kind == "accept":
        return _spoken_s(profile, requests)
    if point.kind == "draft_round":
        return None if profile.draft is None else _draft_round_s(profile, point)
    if point.kind == "host" and point.method in ("", profile.covers.get("method")):
        return _host_s(profile, point)
    return None


def step_work(point: Point) -> StepWork:
    """The step that a point describes: parts of prompts where `is_prefill`, else decoding requests with their
    drafts."""
    requests = len(point.parts)
    if point.is_prefill:
        return StepWork(
            prefill_tokens=point.tokens,
            prefill_rows=point.rows,
            prefill_kv_tokens=point.cached_tokens,
            prefill_pairs=point.pairs,
            next_num_spec_tokens=point.drafts,
            machinery=point.drafts > 0,
        )
    return StepWork(
        decode_requests=requests,
        draft_tokens=point.tokens - requests,
        kv_tokens=point.cached_tokens,
        next_num_spec_tokens=point.drafts,
        machinery=point.drafts > 0 or point.tokens > requests,
    )


def _host_s(profile: LatencyProfile, point: Point) -> float:
    """A decode step of the engine beyond its passes: scheduling, sampling, and what drafting adds on the host."""
    requests = len(point.parts)
    seconds = profile.host_s + requests * profile.host_request_s + point.rows * profile.target.sample_row_s
    if not point.method:
        return seconds
    if profile.draft is None:
        seconds += requests * profile.lookup_request_s
        return seconds + (_spoken_s(profile, requests) if point.tokens > requests else 0.0)
    return seconds + _spoken_s(profile, requests) + point.drafts * requests * profile.draft.sample_row_s


def _spoken_s(profile: LatencyProfile, requests: int) -> float:
    return profile.speculation_host_s + requests * profile.speculation_request_s


def _pass_s(cost: PassCost, profile: LatencyProfile, point: Point) -> float:
    compiled = CompiledPass(cost)
    head = compiled.head(point.rows) - point.rows * cost.sample_row_s if point.rows else 0.0
    if point.kind == "head":
        return head
    if point.kind == "sample":
        return point.rows * cost.sample_row_s
    requests = len(point.parts)
    if not requests:
        raise ProfileError(f"point {point.key}: a pass without requests")
    if point.is_prefill:
        return compiled.matrix(point.tokens) + compiled.prefill(step_work(point)) + head
    width = point.tokens / requests
    unsplit = max(1.0, profile.verify_unsplit_requests / requests) if width > 1 else 1.0
    full, windowed = compiled.kv_rates(width, unsplit, read_once=profile.verify_reads_kv_once)
    seen = sum(min(context, cost.window_tokens) for _, context in point.parts)
    attention = point.cached_tokens * full + seen * windowed
    return compiled.matrix(point.tokens) + attention + requests * cost.request_s + head


def _heads_s(profile: LatencyProfile, point: Point) -> float | None:
    """`drafts` heads at once on the last states of so many requests, output heads included where there are rows of
    logits, nothing sampled; None where the drafter is no heads."""
    if profile.draft is None or profile.draft_mode != "heads":
        return None
    one, requests = CompiledPass(profile.draft), len(point.parts)
    whole = DraftPasses(profile).matrix_s(step_work(point), 0, point.drafts)
    if point.rows:
        return whole - point.drafts * point.rows * profile.draft.sample_row_s
    return whole - point.drafts * one.head(requests)


def _draft_round_s(profile: LatencyProfile, point: Point) -> float:
    passes, work, k = DraftPasses(profile), step_work(point), point.drafts
    requests = len(point.parts)
    full, windowed = passes.kv_rates(k, point.tokens / requests, 1.0)
    seconds = work.kv_tokens * (full + windowed) + passes.matrix_s(work, work.draft_tokens, k)
    return seconds + passes.prompt_s(work, k)
