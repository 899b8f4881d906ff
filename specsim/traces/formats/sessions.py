"""Logs of agent sessions whose times count from the start of their own session (kv-cache-tester, cc-traces)."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.traces.formats.base import Format, Row, Sample

__all__ = ["SESSION_FORMATS"]


def _weka(sample: Sample) -> bool:
    def fits(row: Row) -> bool:
        requests = row.get("requests")
        return (
            type(requests) is list
            and bool(requests)
            and type(requests[0]) is dict
            and "t" in requests[0]
            and ("in" in requests[0] or "requests" in requests[0])
        )

    return any(fits(row) for row in sample.rows)


def _weka_split(row: Row) -> Iterator[Row]:
    requests = row.get("requests")
    if type(requests) is not list or not requests:
        yield {"bad": "session without requests"}
        return
    for item in requests:
        if type(item) is not dict:
            yield {"bad": "request is not an object"}
        elif "in" not in item and "requests" in item:
            yield {"skip": "nested agent, whose own times are not used"}
        else:
            yield {
                "arrival": item.get("t"),
                "prompttokens": item.get("in"),
                "outputtokens": item.get("out"),
                "hashids": item.get("hash_ids"),
                "session": row.get("id"),
            }


SESSION_FORMATS: tuple[Format, ...] = (
    Format(
        name="weka",
        title="agent sessions of kv-cache-tester, one a line",
        matches=_weka,
        columns={
            "arrival": ("arrival",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("output_tokens",),
            "hash_ids": ("hash_ids",),
            "session": ("session",),
        },
        unit="s",
        times="session",
        split=_weka_split,
        local_hashes=True,
    ),
    Format(
        name="cc-traces",
        title="coding-agent sessions of cc-traces",
        matches=lambda sample: {"requestarrivaldeltas", "sessionid", "inputtokens", "outputtokens"} <= sample.keys,
        columns={
            "arrival": ("request_arrival_delta_s",),
            "prompt_tokens": ("input_tokens",),
            "output_tokens": ("output_tokens",),
            "session": ("session_id",),
        },
        unit="s",
        times="session",
        notes=("block hashes are only counted in this file, so prefix reuse is not known and not simulated",),
    ),
)
