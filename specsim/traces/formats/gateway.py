"""Logs of proxies, observability tools and servers that know tokens: LiteLLM, Langfuse, Helicone, SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.traces.formats.base import Format, Row, Sample, compact, dig, failed_status

__all__ = ["GATEWAY_FORMATS"]

_TRUE = frozenset({"true", "1", "yes", "t"})


def _has(sample: Sample, *names: str) -> bool:
    return all(compact(name) in sample.keys for name in names)


def _litellm_skip(row: Row) -> str | None:
    call = str(row.get("calltype") or "").lower()
    if "embedding" in call:
        return "embedding call"
    if call and not any(word in call for word in ("completion", "response", "message", "generate")):
        return f"call of type {call}"
    reason = failed_status(row.get("status"))
    if reason:
        return reason
    if str(row.get("cachehit")).lower() in _TRUE:
        return "answered from the proxy's cache"
    return None


def _langfuse_skip(row: Row) -> str | None:
    kind = str(row.get("type") or "").upper()
    if kind != "GENERATION":
        return f"observation of type {kind or 'none'}, not a generation"
    if str(row.get("level") or "").upper() == "ERROR":
        return "failed request (level ERROR)"
    return None


def _helicone_skip(row: Row) -> str | None:
    reason = failed_status(row.get("responsestatus"))
    if reason:
        return reason
    return (
        "answered from the proxy's cache"
        if str(row.get("cacheenabled")).lower() in _TRUE and row.get("cachereferenceid")
        else None
    )


def _sglang_split(row: Row) -> Iterator[Row]:
    """SGLang's JSON request log: the finished event carries counts and latency, and is stamped at the end."""
    if row.get("event") != "request.finished":
        yield {"skip": f"event {row.get('event')}, only request.finished carries counts"}
        return
    meta = dig(row, ("out", "metainfo"))
    meta = meta if type(meta) is dict else {}
    finish = meta.get("finish_reason")
    aborted = type(finish) is dict and finish.get("type") == "abort"
    yield {
        "skip": "failed request (aborted)" if aborted else None,
        "end": row.get("timestamp"),
        "duration": meta.get("e2e_latency"),
        "prompttokens": meta.get("prompt_tokens"),
        "outputtokens": meta.get("completion_tokens"),
        "id": row.get("rid"),
    }


def _bench_split(row: Row) -> Iterator[Row]:
    """One line of `--output-details` (SGLang) or `--save-detailed` (vLLM): parallel lists, one item a request."""
    inputs, outputs = row.get("inputlens"), row.get("outputlens")
    if type(inputs) is not list or type(outputs) is not list or len(inputs) != len(outputs):
        yield {"bad": "input_lens and output_lens are not two lists of one length"}
        return
    starts, errors = row.get("starttimes"), row.get("errors")
    for number, (prompt, output) in enumerate(zip(inputs, outputs, strict=True)):
        failed = type(errors) is list and number < len(errors) and errors[number]
        yield {
            "skip": "failed request" if failed else None,
            "arrival": starts[number] if type(starts) is list and number < len(starts) else None,
            "prompttokens": prompt,
            "outputtokens": output,
        }


GATEWAY_FORMATS: tuple[Format, ...] = (
    Format(
        name="litellm",
        title="LiteLLM spend log",
        matches=lambda sample: _has(sample, "call_type", "startTime", "prompt_tokens", "completion_tokens"),
        columns={
            "arrival": ("startTime",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("completion_tokens",),
            "session": ("session_id",),
            "id": ("request_id",),
        },
        skip=_litellm_skip,
    ),
    Format(
        name="langfuse",
        title="Langfuse observations",
        matches=lambda sample: (
            _has(sample, "type", "start_time")
            and any(name in sample.keys for name in ("usagedetails", "usage"))
            and any(str(row.get("type")).upper() in ("GENERATION", "SPAN", "EVENT") for row in sample.rows)
        ),
        columns={
            "arrival": ("start_time",),
            "prompt_tokens": ("usage_details.input", "usage.input", "usage.prompt_tokens", "prompt_tokens"),
            "output_tokens": ("usage_details.output", "usage.output", "usage.completion_tokens", "completion_tokens"),
            "session": ("session_id",),
            "id": ("id",),
        },
        skip=_langfuse_skip,
    ),
    Format(
        name="helicone",
        title="Helicone requests",
        matches=lambda sample: _has(sample, "request_created_at", "prompt_tokens", "completion_tokens"),
        columns={
            "arrival": ("request_created_at",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("completion_tokens",),
            "id": ("request_id",),
        },
        skip=_helicone_skip,
    ),
    Format(
        name="sglang-log",
        title="SGLang JSON request log",
        matches=lambda sample: (
            _has(sample, "timestamp", "event", "rid")
            and any(str(row.get("event")).startswith("request.") for row in sample.rows)
        ),
        columns={
            "end": ("end",),
            "duration": ("duration",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("output_tokens",),
            "id": ("id",),
        },
        split=_sglang_split,
    ),
    Format(
        name="sglang-metrics",
        title="SGLang request metrics (--export-metrics-to-file)",
        matches=lambda sample: _has(sample, "request_parameters", "prompt_tokens", "completion_tokens"),
        columns={
            "arrival": ("request_received_ts", "received_time", "request_received_time", "created_time"),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("completion_tokens",),
            "id": ("id",),
        },
    ),
    Format(
        name="bench-details",
        title="details of a serving benchmark (SGLang, vLLM)",
        matches=lambda sample: _has(sample, "input_lens", "output_lens"),
        columns={
            "arrival": ("arrival",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("output_tokens",),
        },
        unit="s",
        split=_bench_split,
    ),
)
