"""A request trace as columns: one row a request, sorted by arrival.

Models: when each request arrives, how many prompt tokens it brings, how many it generates, which prefix
blocks it shares with others, and optionally its session and its task (content class).
Leaves out: text. Memory is about 16 bytes a request, plus 8 a hashed block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from specsim.errors import TraceError
from specsim.type_checks import check_types

__all__ = ["Trace", "TraceMeta"]


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """Where a trace came from and what was done to it; printed by every command that takes `--trace`."""

    source: str
    """Path or description of the origin, e.g. `synthetic: poisson 5/s`."""
    format: str
    """Detected or given format name, e.g. `mooncake`."""
    time_unit: str
    """Unit of the time column as read, with the reason when it was inferred, e.g. `ms (Mooncake)`."""
    sha256: str
    """Hex digest of the decompressed bytes read, or of the synthetic recipe."""
    rows_read: int
    """Data rows seen."""
    rows_kept: int
    """Rows that became requests, before slicing."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows not used; the values and `rows_kept` add up to `rows_read`."""
    dropped_examples: Mapping[str, str] = field(default_factory=dict)
    """Reason -> the first such row, with its line number."""
    arrival_grid_s: float | None = None
    """Spacing of a coarse time grid over which arrivals were spread, else None."""
    notes: tuple[str, ...] = ()
    """Sentences on what was detected, assumed or changed (slicing and rescaling included)."""
    warnings: tuple[str, ...] = ()
    """Sentences on what may change the answer."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as parallel arrays of length n, sorted by `arrival_s`.

    Raises:
        TraceError: when lengths differ, arrivals are unsorted or not finite, or a token count is below 1.
    """

    arrival_s: np.ndarray
    """float64 [n], seconds from the start of the trace (the first row kept may be later than 0)."""
    prompt_tokens: np.ndarray
    """int32 [n], at least 1."""
    output_tokens: np.ndarray
    """int32 [n], at least 1."""
    meta: TraceMeta
    hash_block_tokens: int | None = None
    """Prompt tokens covered by one prefix hash, or None when the trace has none."""
    hash_ids: np.ndarray | None = None
    """int64 [sum of blocks], all requests' prefix hashes one after another."""
    hash_offsets: np.ndarray | None = None
    """int64 [n + 1]; request i owns `hash_ids[hash_offsets[i]:hash_offsets[i + 1]]`."""
    session: np.ndarray | None = None
    """int32 [n], code of the session, -1 for none."""
    task: np.ndarray | None = None
    """int16 [n], index into `task_names`, -1 for none."""
    task_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self, "trace", TraceError)
        n = len(self.arrival_s)
        for name in ("prompt_tokens", "output_tokens", "session", "task"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise TraceError(f"{self.meta.source}: column {name} has {len(column)} rows, arrival_s has {n}")
        if (self.hash_ids is None) != (self.hash_offsets is None) or (
            self.hash_offsets is not None and len(self.hash_offsets) != n + 1
        ):
            raise TraceError(f"{self.meta.source}: hash_ids and hash_offsets do not belong together")
        if n and (not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any()):
            raise TraceError(f"{self.meta.source}: arrivals must be finite and sorted")
        if n and (int(self.prompt_tokens.min()) < 1 or int(self.output_tokens.min()) < 1):
            raise TraceError(f"{self.meta.source}: prompt and output tokens must be at least 1")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last arrival."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals per second, (n - 1) / span; 0 when undefined."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else 0.0

    def hashes(self, i: int) -> np.ndarray:
        """Prefix hashes of request `i`; empty when the trace has none."""
        if self.hash_ids is None or self.hash_offsets is None:
            return np.empty(0, dtype=np.int64)
        return self.hash_ids[self.hash_offsets[i] : self.hash_offsets[i + 1]]

    def rows(self, first: int, stop: int) -> Trace:
        """Requests `first` to `stop - 1`; arrivals keep their times. Cheap: columns are views."""
        cut = slice(first, stop)
        ids = offsets = None
        if self.hash_ids is not None and self.hash_offsets is not None:
            offsets = self.hash_offsets[first : stop + 1] - self.hash_offsets[first]
            ids = self.hash_ids[self.hash_offsets[first] : self.hash_offsets[stop]]
        return replace(
            self,
            arrival_s=self.arrival_s[cut],
            prompt_tokens=self.prompt_tokens[cut],
            output_tokens=self.output_tokens[cut],
            hash_ids=ids,
            hash_offsets=offsets,
            session=None if self.session is None else self.session[cut],
            task=None if self.task is None else self.task[cut],
        )

    def scaled(self, factor: float) -> Trace:
        """The same requests arriving `factor` times as fast, from time 0."""
        if not (np.isfinite(factor) and factor > 0):
            raise TraceError(f"rate scale must be finite and > 0, got {factor!r}")
        start = self.arrival_s[0] if len(self) else 0.0
        return replace(self, arrival_s=(self.arrival_s - start) / factor)
