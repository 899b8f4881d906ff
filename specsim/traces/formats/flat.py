"""Formats with one request a row and plain columns: public traces, simulators' workloads, and the generic fallback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specsim.traces.formats.base import Format, Row, Sample, compact, failed_status

__all__ = ["ENDINGS", "FLAT_FORMATS", "GENERIC", "PLAIN_NAMES", "TIME_STEMS", "with_plain_names"]


def _has(*names: str) -> Any:
    wanted = frozenset(compact(name) for name in names)
    return lambda sample: wanted <= sample.keys


def _mooncake(sample: Sample) -> bool:
    keys = sample.keys
    return "inputlength" in keys and (
        "timestamp" in keys or ("sessionid" in keys and ("delay" in keys or "outputlength" in keys))
    )


def _aibrix(sample: Sample) -> bool:
    return "timestamp" in sample.keys and any(
        type(row.get("requests")) is list
        and any(type(item) is dict and "Prompt Length" in item for item in row["requests"])
        for row in sample.rows
    )


def _aibrix_split(row: Row) -> Iterator[Row]:
    requests = row.get("requests")
    if type(requests) is not list or not requests:
        yield {"bad": "record without requests"}
        return
    for item in requests:
        inner = item if type(item) is dict else {}
        yield {
            "timestamp": row.get("timestamp"),
            "prompttokens": inner.get("Prompt Length"),
            "outputtokens": inner.get("Output Length"),
            "sessionid": inner.get("Session ID") or inner.get("session_id"),
        }


def _generic_skip(row: Row) -> str | None:
    for name in ("status", "statuscode", "responsestatus", "httpstatus"):
        reason = failed_status(row.get(name))
        if reason:
            return reason
    if row.get("iserror") in (True, "true", "True", "TRUE"):
        return "failed request"
    return None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _spellings(stems: str, endings: str) -> tuple[str, ...]:
    return tuple(stem + ending for stem in stems.split() for ending in ("", *endings.split()))


TIME_STEMS = (
    "arrival_time arrival_timestamp arrival arrived_at arrival_at request_arrival request_start_time start_time"
    " request_timestamp request_time requested_at request_created_at received_at received_time started_at"
    " submitted_at submit_time send_time sent_at created_at created timestamp datetime date_time event_time"
    " time_stamp time ts start date t"
)
ENDINGS = "_s _sec _seconds _ms _us _ns _unix _unix_nano _iso _utc"
"""What a well-known name of a time column may end in."""

_GENERIC_COLUMNS = {
    "arrival": _spellings(TIME_STEMS, ENDINGS),
    "prompt_tokens": _words(
        "prompt_tokens input_tokens input_length num_prompt_tokens num_input_tokens "
        "num_prefill_tokens n_prompt_tokens context_tokens request_tokens prefill_tokens "
        "prompt_token_count input_token_count prompt_length prompt_len input_len input_toks "
        "prompt_size prompt_token_ids_len isl tokens_in in_tokens input_seq_len "
        "input_sequence_length context_length query_tokens n_input_tokens usage.prompt_tokens "
        "usage.input_tokens response.usage.prompt_tokens n_in num_in prompt_n"
    ),
    "output_tokens": _words(
        "completion_tokens output_tokens output_length generated_tokens num_completion_tokens "
        "num_output_tokens num_generated_tokens num_decode_tokens n_output_tokens "
        "response_tokens decode_tokens completion_token_count output_token_count "
        "candidates_token_count completion_length completion_len output_len output_toks "
        "token_size osl tokens_out out_tokens output_seq_len output_sequence_length "
        "response_length target_tokens generation_tokens usage.completion_tokens "
        "usage.output_tokens response.usage.completion_tokens n_out num_out predicted_n"
    ),
    "hash_ids": ("hash_ids", "block_hashes", "prefix_hashes", "block_hash_ids"),
    "session": ("session_id", "conversation_id", "chat_session_id", "session", "thread_id"),
    "task": ("task", "task_type", "content_class"),
    "id": ("request_id", "requestid", "req_id", "rid"),
    "prompt_text": ("prompt", "text_input", "input_text", "messages"),
    "output_text": ("completion", "output_text", "response_text", "generated_text"),
}

GENERIC = Format(
    name="generic",
    title="columns by well-known names",
    matches=lambda sample: True,
    columns={name: tuple(value) for name, value in _GENERIC_COLUMNS.items()},
    skip=_generic_skip,
)

PLAIN_NAMES = {"input": ("prompt_tokens", "prompt_text"), "output": ("output_tokens", "output_text")}
"""Column -> what it is when it holds whole numbers, and what else. Elsewhere such a column is as often a text."""


def with_plain_names(form: Format, sample: Sample) -> Format:
    """The generic format with columns called only `input` and `output`, last, as what their first rows say they are."""
    columns = dict(form.columns)
    for name, (count, text) in PLAIN_NAMES.items():
        values = [row[name] for row in sample.rows if row.get(name) not in (None, "")]
        if values:
            field = count if all(str(value).strip().isdecimal() for value in values) else text
            columns[field] = (*columns[field], name)
    return replace(form, columns=columns)


_MOONCAKE_COLUMNS = {
    "arrival": ("timestamp",),
    "prompt_tokens": ("input_length",),
    "output_tokens": ("output_length",),
    "hash_ids": ("hash_ids",),
    "session": ("session_id",),
    "task": ("task",),
    "prompt_text": ("text_input",),
}

FLAT_FORMATS: tuple[Format, ...] = (
    Format(
        name="specsim",
        title="specsim's own JSON Lines (Mooncake keys)",
        matches=lambda sample: bool(sample.rows) and "specsim" in sample.rows[0] and _mooncake(sample),
        columns=_MOONCAKE_COLUMNS,
        unit="ms",
        keeps_zero=True,
    ),
    Format(
        name="specsim-csv",
        title="specsim's own CSV",
        matches=lambda sample: sample.header and {"arrivals", "prompttokens", "outputtokens"} <= sample.keys,
        columns={
            "arrival": ("arrival_s",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("output_tokens",),
            "hash_ids": ("hash_ids",),
            "session": ("session_id",),
            "task": ("task",),
        },
        unit="s",
        keeps_zero=True,
    ),
    Format(
        name="bailian",
        title="Qwen-Bailian JSON Lines",
        matches=_has("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
        columns={**_MOONCAKE_COLUMNS, "task": ("type",), "session": ("chat_root",), "id": ("chat_id",)},
        unit="s",
    ),
    Format(
        name="mooncake",
        title="Mooncake JSON Lines, or one with its keys (aiperf, vLLM timed_trace)",
        matches=_mooncake,
        columns=_MOONCAKE_COLUMNS,
        mooncake_time=True,
    ),
    Format(
        name="azure",
        title="Azure LLM inference trace (CSV)",
        matches=_has("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        columns={
            "arrival": ("TIMESTAMP",),
            "prompt_tokens": ("ContextTokens",),
            "output_tokens": ("GeneratedTokens",),
        },
    ),
    Format(
        name="burstgpt",
        title="BurstGPT (CSV)",
        matches=_has("Timestamp", "Request tokens", "Response tokens", "Log Type"),
        columns={
            "arrival": ("Timestamp",),
            "prompt_tokens": ("Request tokens",),
            "output_tokens": ("Response tokens",),
            "session": ("Session ID",),
        },
        unit="s",
        zero_is_failure=True,
    ),
    Format(
        name="vidur",
        title="Vidur request trace (CSV)",
        matches=_has("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        columns={
            "arrival": ("arrived_at",),
            "prompt_tokens": ("num_prefill_tokens",),
            "output_tokens": ("num_decode_tokens",),
        },
        unit="s",
    ),
    Format(
        name="vidur-lengths",
        title="Vidur length trace (CSV, no arrival times)",
        matches=_has("num_prefill_tokens", "num_decode_tokens"),
        columns={"prompt_tokens": ("num_prefill_tokens",), "output_tokens": ("num_decode_tokens",)},
        times="none",
    ),
    Format(
        name="splitwise-sim",
        title="splitwise-sim request trace (CSV)",
        matches=_has("arrival_timestamp", "prompt_size", "token_size"),
        columns={
            "arrival": ("arrival_timestamp",),
            "prompt_tokens": ("prompt_size",),
            "output_tokens": ("token_size",),
            "id": ("request_id",),
        },
        unit="s",
    ),
    Format(
        name="llmservingsim",
        title="LLMServingSim workload",
        matches=_has("input_toks", "output_toks", "arrival_time_ns"),
        columns={
            "arrival": ("arrival_time_ns",),
            "prompt_tokens": ("input_toks",),
            "output_tokens": ("output_toks",),
        },
        unit="ns",
    ),
    Format(
        name="dsdsim",
        title="dsdSim workload",
        matches=_has("arrival_ms", "prompt_tokens", "target_tokens"),
        columns={
            "arrival": ("arrival_ms",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("target_tokens",),
            "id": ("request_id",),
        },
        unit="ms",
    ),
    Format(
        name="aibrix",
        title="AIBrix workload",
        matches=_aibrix,
        columns={
            "arrival": ("timestamp",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("output_tokens",),
            "session": ("session_id",),
        },
        split=_aibrix_split,
        unit="ms",
    ),
)
