"""Request traces: read, check, slice, rescale, convert, synthesise."""

from __future__ import annotations

from specsim.traces.model import Trace, TraceMeta
from specsim.traces.options import ReadOptions
from specsim.traces.read import read_trace

__all__ = ["ReadOptions", "Trace", "TraceMeta", "read_trace"]
