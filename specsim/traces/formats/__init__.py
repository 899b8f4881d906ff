"""The log formats that are understood, in the order in which they are tried; the generic one comes last."""

from __future__ import annotations

from specsim.errors import TraceError, nearest
from specsim.traces.formats.access import ACCESS_FORMATS
from specsim.traces.formats.base import Format, Sample
from specsim.traces.formats.flat import FLAT_FORMATS, GENERIC
from specsim.traces.formats.gateway import GATEWAY_FORMATS
from specsim.traces.formats.sessions import SESSION_FORMATS
from specsim.traces.formats.spans import SPAN_FORMATS
from specsim.traces.formats.texts import TEXT_FORMATS

__all__ = ["FORMATS", "detect", "find_format", "format_names"]

FORMATS: tuple[Format, ...] = (
    *FLAT_FORMATS,
    *GATEWAY_FORMATS,
    *SESSION_FORMATS,
    *SPAN_FORMATS,
    *ACCESS_FORMATS,
    *TEXT_FORMATS,
    GENERIC,
)


def format_names() -> tuple[str, ...]:
    """Every name that `--trace-format` accepts."""
    return (*(form.name for form in FORMATS), "servegen")


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        TraceError: no such format; the message lists them.
    """
    for form in FORMATS:
        if form.name == name:
            return form
    raise TraceError(f"--trace-format {name!r} is unknown{nearest(name, format_names())}; {', '.join(format_names())}")


def detect(sample: Sample) -> Format:
    """The first format that the sample fits; the generic one fits always."""
    return next(form for form in FORMATS if form.matches(sample))
