"""Flags that were given but had nothing to do on this log: each leaves a note, so that nothing is ignored silently."""

from __future__ import annotations

from specsim.traces.mapper import RowMapper
from specsim.traces.options import ReadOptions

__all__ = ["unused_flags", "unused_with_servegen"]

_COUNTS = "its rows say their tokens"


def unused_flags(options: ReadOptions, mapper: RowMapper) -> list[str]:
    """Sentences about the flags that changed nothing, after the whole log was read."""
    sink = mapper.sink
    out: list[tuple[str, str]] = []
    if options.session_rate_per_s is not None and 1 not in sink.in_session:
        out.append(("--session-rate", "this log has arrival times"))
    if options.time_unit is not None and options.arrivals is not None:
        out.append(("--time-unit", "arrivals are drawn"))
    if options.hash_block_tokens is not None and not sink.has_hashes:
        out.append(("--hash-block", "this log has no prefix hashes"))
    if options.default_output_tokens is not None and not mapper.default_rows:
        out.append(("--default-output", "every row kept says its output"))
    if options.bytes_per_token is not None and not mapper.rows_from_bytes:
        out.append(("--bytes-per-token", _COUNTS))
    if options.chars_per_token is not None and not mapper.rows_from_text:
        out.append(("--chars-per-token", _COUNTS))
    return [_note(flag, why) for flag, why in out]


def unused_with_servegen(options: ReadOptions) -> list[str]:
    """The same for ServeGen pairs, whose columns and units are fixed and whose requests are sampled."""
    given = {
        "--column": bool(options.columns),
        "--time-unit": options.time_unit is not None,
        "--strict": options.strict,
        "--no-spread-grid": not options.spread_grid,
        "--session-rate": options.session_rate_per_s is not None,
        "--arrivals": options.arrivals is not None,
        "--bytes-per-token": options.bytes_per_token is not None,
        "--chars-per-token": options.chars_per_token is not None,
        "--default-output": options.default_output_tokens is not None,
        "--hash-block": options.hash_block_tokens is not None,
    }
    return [_note(flag, "ServeGen files fix columns and units, and requests are sampled") for flag in given
            if given[flag]]  # fmt: skip


def _note(flag: str, why: str) -> str:
    return f"{flag} was given, but {why}: not used"
