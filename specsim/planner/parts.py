"""The parts of a plan's JSON that only repeat what was asked: trace, settings, deployment, profile, memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from specsim.planner import surface
from specsim.planner.question import PlanSettings, Question, Side
from specsim.traces.model import Trace
from specsim.traces.rates import arrival_rates
from specsim.traces.stats import TraceStats

__all__ = ["cost_part", "crossing_part", "deployment_part", "kv_link", "profile_part", "settings_part", "trace_part"]


def trace_part(trace: Trace, statistics: TraceStats, simulated_requests: int) -> dict[str, Any]:
    """The log as it was read, and its figures."""
    meta = trace.meta
    return {
        "source": meta.source,
        "format": meta.format,
        "time_unit": meta.time_unit,
        "sha256": meta.sha256,
        "rows_read": meta.rows_read,
        "rows_kept": meta.rows_kept,
        "dropped": dict(meta.dropped),
        "dropped_examples": dict(meta.dropped_examples),
        "arrival_grid_s": meta.arrival_grid_s,
        "notes": list(meta.notes),
        "statistics": {k: v for k, v in asdict(statistics).items() if k != "warnings"},
        "arrivals": asdict(arrival_rates(trace.arrival_s)),
        "simulated_requests": simulated_requests,
    }


def settings_part(settings: PlanSettings) -> dict[str, Any]:
    """How much was simulated, without what never changes a result."""
    return {name: value for name, value in asdict(settings).items() if name != "jobs"}


def deployment_part(question: Question) -> dict[str, Any]:
    """What is deployed, as asked for and as resolved into limits and bytes."""
    on, off = question.on, question.off
    return {
        **asdict(question.deployment),
        "engine_version": question.deployment.version,
        "speculation": asdict(question.speculation),
        "slo": asdict(question.slo),
        "names": dict(question.names),
        "limits_off": asdict(off.limits),
        "limits_on": asdict(on.limits),
        "memory_off": dict(off.memory),
        "memory_on": dict(on.memory),
        "kv_link": kv_link(on),
    }


def kv_link(side: Side) -> dict[str, float] | None:
    """The link between prefill and decode replicas as it is simulated; None where there is none."""
    pools = side.disaggregation
    if pools is None:
        return None
    return {"bytes_per_s": pools.link_bytes_per_s, "latency_s": pools.link_latency_s, "block_bytes": pools.block_bytes}


def profile_part(question: Question) -> dict[str, Any]:
    """Where costs and acceptance come from, and how sure they are."""
    on, off = question.on.profile, question.off.profile
    lengths = {
        str(k): question.acceptance.expected_length(k) for k in sorted({1, *question.speculation.num_spec_tokens})
    }
    return {
        "kind": on.kind,
        "name": on.name,
        "name_off": off.name,
        "sha256": on.sha256,
        "sha256_off": off.sha256,
        "relative_error": on.relative_error,
        "speedup_error": surface.surface_error(question),
        "covers": dict(on.covers),
        "sources": dict(on.sources),
        "notes": list(dict.fromkeys([*off.notes, *on.notes])),
        "acceptance": {
            "name": question.acceptance.name,
            "source": question.acceptance_source,
            "relative_error": question.acceptance_error,
            "conditional": [float(a) for a in question.acceptance.conditional][: max(question.max_k, 1)],
            "proposal_rate": question.acceptance.proposal_rate,
            "mean_acceptance_length_by_k": lengths,
            "by_task": [
                {
                    "task": part.task,
                    "share": part.share,
                    "known": part.known,
                    "source": part.source,
                    "mean_acceptance_length_by_k": {str(k): length for k, length in part.lengths.items()},
                }
                for part in question.acceptance_by_task
            ],
        },
    }


def crossing_part(c: surface.Crossing) -> dict[str, Any]:
    """A crossing by batch."""
    return asdict(c) | {"context": c.context_tokens, "pays": [list(r) for r in c.pays]}


def cost_part(question: Question) -> dict[str, Any]:
    """What loading the drafter takes from the cache."""
    off, on = question.off.limits, question.on.limits
    tokens_off = off.num_kv_blocks * off.block_size_tokens
    tokens_on = on.num_kv_blocks * on.block_size_tokens
    return {
        "kv_tokens_off": tokens_off,
        "kv_tokens_on": tokens_on,
        "kv_share_lost": 1 - tokens_on / tokens_off,
        "draft_weight_bytes": question.on.memory.get("draft_weight_bytes", 0.0),
        "draft_kv_bytes_per_token": question.on.memory.get("draft_kv_bytes_per_token", 0.0),
    }
