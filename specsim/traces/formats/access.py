"""Access logs that know bytes but no tokens: nginx (JSON), Envoy, Azure OpenAI diagnostics.

nginx stamps the end of a request, Envoy the start; Azure counts 100-ns ticks since year 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from specsim.traces.formats.base import Format, Row, Sample, compact, failed_status

__all__ = ["ACCESS_FORMATS"]


def _not_generation(method: object, path: object) -> str | None:
    if method and str(method).upper() not in ("POST", "PUT"):
        return f"{str(method).upper()} request, not a generation"
    text = str(path or "").lower()
    if "embedding" in text:
        return "embedding call"
    if text and any(word in text for word in ("/health", "/metrics", "/tokenize", "/detokenize", "/v1/models")):
        return "not a generation endpoint"
    return None


def _nginx_skip(row: Row) -> str | None:
    method, _, rest = str(row.get("request") or "").partition(" ")
    return _not_generation(method, rest.partition(" ")[0]) or failed_status(row.get("status"))


def _envoy_skip(row: Row) -> str | None:
    return _not_generation(row.get("envoymethod"), row.get("envoypath")) or failed_status(row.get("envoystatus"))


def _azure_split(row: Row) -> Iterator[Row]:
    properties = row.get("properties")
    if type(properties) is str:
        try:
            properties = json.loads(properties)
        except ValueError:
            yield {"bad": "properties not valid JSON"}
            return
    if type(properties) is not dict:
        yield {"bad": "record without properties"}
        return
    inner = {compact(name): value for name, value in properties.items()}
    operation = str(row.get("operationname") or "")
    skip = "embedding call" if "embedding" in operation.lower() else failed_status(row.get("resultsignature"))
    yield {
        "skip": skip,
        "arrival": inner.get("requesttime"),
        "promptbytes": inner.get("requestlength"),
        "outputbytes": inner.get("responselength"),
        "prompttokens": inner.get("prompttokens"),
        "outputtokens": inner.get("completiontokens", inner.get("generatedtokens")),
        "id": row.get("correlationid"),
    }


def _azure(sample: Sample) -> bool:
    return {"operationname", "properties", "resultsignature"} <= sample.keys


ACCESS_FORMATS: tuple[Format, ...] = (
    Format(
        name="nginx",
        title="nginx access log (JSON)",
        matches=lambda sample: {"msec", "requesttime", "requestlength"} <= sample.keys,
        columns={
            "end": ("msec",),
            "duration": ("request_time",),
            "prompt_bytes": ("request_length",),
            "output_bytes": ("body_bytes_sent", "bytes_sent"),
        },
        unit="s",
        skip=_nginx_skip,
        needs_bytes=True,
        notes=("arrival is the logged end of a request minus its duration",),
    ),
    Format(
        name="envoy",
        title="Envoy access log",
        matches=lambda sample: "envoytime" in sample.keys,
        columns={
            "arrival": ("envoytime",),
            "prompt_bytes": ("envoyreceived",),
            "output_bytes": ("envoysent",),
        },
        skip=_envoy_skip,
        needs_bytes=True,
    ),
    Format(
        name="azure-diagnostics",
        title="Azure OpenAI diagnostic log",
        matches=_azure,
        columns={
            "arrival": ("arrival",),
            "prompt_tokens": ("prompt_tokens",),
            "output_tokens": ("output_tokens",),
            "prompt_bytes": ("prompt_bytes",),
            "output_bytes": ("output_bytes",),
            "id": ("id",),
        },
        unit="ticks",
        split=_azure_split,
        needs_bytes=True,
    ),
)
