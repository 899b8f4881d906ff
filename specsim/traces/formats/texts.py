"""Prompts and results without arrival times: OpenAI batch output and usage buckets, ShareGPT, vLLM custom prompts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from specsim.traces.formats.base import Format, Row, Sample, dig, failed_status

__all__ = ["TEXT_FORMATS", "usage_totals"]

_HUMAN = frozenset({"human", "user"})
_MODEL = frozenset({"gpt", "assistant", "model", "chatgpt", "bing", "bard"})
_TEXT_COLUMNS = {
    "prompt_tokens": ("prompt_tokens",),
    "output_tokens": ("output_tokens",),
    "prompt_text": ("prompt_text",),
    "output_text": ("output_text",),
    "id": ("id",),
}


def _sharegpt_split(row: Row) -> Iterator[Row]:
    """The first question that has an answer, as serving benchmarks take it."""
    turns = row.get("conversations")
    turns = [turn for turn in turns if type(turn) is dict] if type(turns) is list else []
    for ask, answer in pairwise(turns):
        if str(ask.get("from")).lower() in _HUMAN and str(answer.get("from")).lower() in _MODEL:
            yield {"prompttext": ask.get("value"), "outputtext": answer.get("value"), "id": row.get("id")}
            return
    yield {"skip": "conversation without a question followed by an answer"}


def _batch_skip(row: Row) -> str | None:
    error = row.get("error")
    if error:
        code = error.get("code") if type(error) is dict else error
        return f"failed request ({code})"
    return failed_status(dig(row, ("response", "statuscode")))


def _is_batch(sample: Sample) -> bool:
    return {"customid", "response"} <= sample.keys


def _is_usage(sample: Sample) -> bool:
    data = sample.rows[0].get("data") if sample.rows else None
    return type(data) is list and bool(data) and type(data[0]) is dict and data[0].get("object") == "bucket"


def usage_totals(row: Row) -> tuple[int, int, int, float]:
    """(requests, input tokens, output tokens, seconds) of OpenAI usage buckets; what is not a number counts as 0."""

    def number(value: Any) -> int:
        return value if type(value) is int else 0

    requests = inputs = outputs = 0
    seconds = 0.0
    data = row.get("data")
    for bucket in data if type(data) is list else ():
        if type(bucket) is not dict:
            continue
        seconds += number(bucket.get("end_time")) - number(bucket.get("start_time"))
        results = bucket.get("results")
        for result in results if type(results) is list else ():
            if type(result) is dict:
                requests += number(result.get("num_model_requests"))
                inputs += number(result.get("input_tokens"))
                outputs += number(result.get("output_tokens"))
    return requests, inputs, outputs, seconds


TEXT_FORMATS: tuple[Format, ...] = (
    Format(
        name="openai-batch",
        title="OpenAI batch output (no arrival times)",
        matches=_is_batch,
        columns={
            "prompt_tokens": ("response.body.usage.prompt_tokens", "response.body.usage.input_tokens"),
            "output_tokens": ("response.body.usage.completion_tokens", "response.body.usage.output_tokens"),
            "id": ("custom_id",),
        },
        times="none",
        skip=_batch_skip,
    ),
    Format(name="openai-usage", title="OpenAI usage buckets", matches=_is_usage, times="none"),
    Format(
        name="sharegpt",
        title="ShareGPT conversations (no arrival times)",
        matches=lambda sample: "conversations" in sample.keys,
        columns=_TEXT_COLUMNS,
        times="none",
        split=_sharegpt_split,
    ),
    Format(
        name="vllm-custom",
        title="prompts for vLLM's custom data set (no arrival times)",
        matches=lambda sample: "prompt" in sample.keys and sample.keys <= {"prompt", "outputtokens", "prompttokens"},
        columns={**_TEXT_COLUMNS, "prompt_text": ("prompt",)},
        times="none",
    ),
)
