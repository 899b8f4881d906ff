"""OpenTelemetry GenAI spans: OTLP/JSON batches, Jaeger JSON, span lists, and spans flattened to one object a line.

Attribute names: `gen_ai.usage.input_tokens` / `output_tokens` and the older `prompt_tokens` / `completion_tokens`, as
in the OpenTelemetry semantic conventions for generative AI; also OpenInference's `llm.token_count.*`. Spans of tools,
agents and embeddings are no requests to a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specsim.traces.formats.base import Format, Row, Sample, compact, text_chars

__all__ = ["SPAN_FORMATS"]

_PROMPT = (
    "genai.usage.inputtokens",
    "genai.usage.prompttokens",
    "llm.tokencount.prompt",
    "llm.usage.prompttokens",
    "inputtokens",
    "prompttokens",
)
_OUTPUT = (
    "genai.usage.outputtokens",
    "genai.usage.completiontokens",
    "llm.tokencount.completion",
    "llm.usage.completiontokens",
    "outputtokens",
    "completiontokens",
)
_START = ("starttimeunixnano", "starttimes", "starttime", "starttimeiso", "timestamp", "start")
_SESSION = ("genai.conversation.id", "session.id", "exgentic.session.id", "sessionid", "conversationid")
_MODEL_CALLS = frozenset(
    {"chat", "textcompletion", "completion", "generatecontent", "messages", "responses", "llmcall"}
)
_COLUMNS = {
    "arrival": ("arrival",),
    "prompt_tokens": ("prompt_tokens",),
    "output_tokens": ("output_tokens",),
    "session": ("session",),
    "id": ("id",),
    "prompt_text": ("prompt_text",),
    "output_text": ("output_text",),
}


def _plain(value: Any) -> Any:
    """Content of an OTLP AnyValue (`{"intValue": "3"}`), or the value itself."""
    if type(value) is dict and len(value) == 1:
        name, inner = next(iter(value.items()))
        if name.endswith(("Value", "_value")):
            return inner
    return value


def _flatten(span: Row) -> Row:
    """Span fields and attributes in one dict with compact names."""
    row = {compact(name): value for name, value in span.items()}
    attributes = row.pop("attributes", None)
    if attributes is None:
        attributes = row.pop("tags", None)
    if type(attributes) is list:
        for item in attributes:
            if type(item) is dict and "key" in item:
                row[compact(str(item["key"]))] = _plain(item.get("value"))
    elif type(attributes) is dict:
        for name, value in attributes.items():
            row[compact(name)] = _plain(value)
    return row


def _first(row: Row, names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _failed(row: Row) -> bool:
    status = row.get("status")
    code = status.get("code") if type(status) is dict else row.get("statuscode", status)
    return str(code).upper() in ("2", "ERROR", "STATUS_CODE_ERROR") or str(row.get("iserror")).lower() == "true"


def _request(span: Any) -> Row:
    """One span as a row of canonical names, with `skip` when it is no successful call of a model."""
    if type(span) is not dict:
        return {"bad": "span is not an object"}
    row = _flatten(span)
    operation = str(_first(row, ("genai.operation.name", "operationname", "spantype", "openinference.span.kind")) or "")
    prompt, output = _first(row, _PROMPT), _first(row, _OUTPUT)
    out: Row = {
        "arrival": _first(row, _START),
        "prompttokens": prompt,
        "outputtokens": output,
        "session": _first(row, _SESSION),
        "id": _first(row, ("spanid", "id")),
        "prompttext": text_chars(_first(row, ("genai.input.messages", "genai.prompt", "input.value"))),
        "outputtext": text_chars(_first(row, ("genai.output.messages", "genai.output.text", "output.value"))),
    }
    short = compact(operation)
    if short and short not in _MODEL_CALLS and short != "llm" and (prompt is None or "embedding" in short):
        out["skip"] = "embedding call" if "embedding" in short else f"span of {operation}, not a model call"
    elif not short and prompt is None and output is None:
        out["skip"] = "span without token counts, not a model call"
    elif _failed(row):
        out["skip"] = "failed request"
    return out


def _otlp_split(row: Row) -> Iterator[Row]:
    found = False
    for resource in row.get("resourcespans") or ():
        scopes = resource.get("scopeSpans") or resource.get("scope_spans") or () if type(resource) is dict else ()
        for scope in scopes:
            for span in (scope.get("spans") or ()) if type(scope) is dict else ():
                found = True
                yield _request(span)
    if not found:
        yield {"bad": "batch without spans"}


def _list_split(row: Row) -> Iterator[Row]:
    groups = row.get("data") if type(row.get("data")) is list else [{"spans": row.get("spans")}]
    found = False
    for group in groups or ():
        for span in (group.get("spans") or ()) if type(group) is dict else ():
            found = True
            yield _request(span)
    if not found:
        yield {"bad": "document without spans"}


def _flat_split(row: Row) -> Iterator[Row]:
    yield _request(row)


def _is_span_list(sample: Sample) -> bool:
    first = sample.rows[0] if sample.rows else {}
    data = first.get("data")
    jaeger = type(data) is list and bool(data) and type(data[0]) is dict and "spans" in data[0]
    return type(first.get("spans")) is list or jaeger


def _is_flat(sample: Sample) -> bool:
    keys = sample.keys
    dotted = any(key.startswith(("genai.usage.", "llm.tokencount.")) for key in keys)
    nested = "attributes" in keys and bool(keys & {"starttimeunixnano", "starttime", "spanid"})
    agent = {"spanid", "inputtokens", "outputtokens"} <= keys and bool(keys & set(_START))
    return dotted or nested or agent


SPAN_FORMATS: tuple[Format, ...] = (
    Format(
        name="otlp",
        title="OpenTelemetry GenAI spans (OTLP/JSON)",
        matches=lambda sample: "resourcespans" in sample.keys,
        columns=_COLUMNS,
        split=_otlp_split,
    ),
    Format(
        name="otel-list",
        title="OpenTelemetry GenAI spans (list of spans)",
        matches=_is_span_list,
        columns=_COLUMNS,
        split=_list_split,
    ),
    Format(
        name="otel-flat",
        title="OpenTelemetry GenAI spans (one span a line)",
        matches=_is_flat,
        columns=_COLUMNS,
        split=_flat_split,
    ),
)
