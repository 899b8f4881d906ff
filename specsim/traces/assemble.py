"""From columns in file order to a `Trace`: duplicates out, unit settled, sorted, grid spread, everything said.

Leaves out: reading rows and slicing. Large columns are moved, not copied, where the order allows it.
"""

from __future__ import annotations

import numpy as np

from specsim.errors import TraceError
from specsim.traces.arrivals import draw_arrivals, draw_session_starts
from specsim.traces.clock import Unit, choose_unit
from specsim.traces.formats.base import Format
from specsim.traces.grid import find_grid, spread
from specsim.traces.model import Trace, TraceMeta
from specsim.traces.options import ReadOptions
from specsim.traces.sink import RowSink

__all__ = ["assemble", "infer_hash_block", "refuse_empty"]

_BLOCKS = (512, 16, 64, 32, 128, 256, 1024, 8, 2048, 4096)
_DUPLICATES_AT_MOST = 0.2


def _duplicates(sink: RowSink, notes: list[str]) -> np.ndarray | None:
    """Mask of rows to keep when ids repeat, else None; a column that repeats often is no request id."""
    if not sink.has_idents:
        return None
    idents = np.frombuffer(sink.idents, dtype=np.int64)
    _, first = np.unique(idents, return_index=True)
    repeated = len(idents) - len(first)
    if repeated == 0:
        return None
    if repeated > _DUPLICATES_AT_MOST * len(idents) and repeated > 1:
        notes.append(f"the id column repeats on {repeated:,} rows, so it was not taken as a request id")
        return None
    keep = np.zeros(len(idents), dtype=bool)
    keep[first] = True
    again = int(np.flatnonzero(~keep)[0])
    sink.drop(int(sink.lines[again]), "duplicate request id", "the first row with the id is kept", count=repeated)
    return keep


def infer_hash_block(prompts: np.ndarray, counts: np.ndarray) -> int | None:
    """Tokens a prefix hash covers, such that ceil or floor (prompt / block) is the number of hashes on 90 % of rows.

    Args:
        prompts, counts: [n] prompt tokens and hashes of the rows that have any.
    """
    if not len(prompts):
        return None
    blocks = _BLOCKS if int(counts.max()) > 1 else _BLOCKS[:1]
    for block in blocks:
        fits = (-(-prompts // block) == counts) | (prompts // block == counts)
        if float(fits.mean()) >= 0.9:
            return block
    return None


def _arrivals(
    sink: RowSink,
    form: Format,
    options: ReadOptions,
    keep: np.ndarray | None,
    column: str,
    stated: str | None,
    hash_block: int | None,
    notes: list[str],
) -> tuple[np.ndarray, Unit]:
    """(seconds [n] in file order, unit of the column)."""
    raw = np.frombuffer(sink.times, dtype=np.float64)
    in_session = np.frombuffer(sink.in_session, dtype=np.int8).astype(bool)
    sessions = np.frombuffer(sink.sessions, dtype=np.int32)
    lines = np.frombuffer(sink.lines, dtype=np.int64)
    if keep is not None:
        raw, in_session, sessions, lines = raw[keep], in_session[keep], sessions[keep], lines[keep]
    if options.arrivals is not None:
        notes.append(f"arrival times are drawn in file order: {options.arrivals}, seed {options.seed}")
        unit = Unit(1.0, "s", "arrivals drawn, none read", True)
        return draw_arrivals(options.arrivals, len(raw), options.seed), unit
    unit = choose_unit(
        sink.clock,
        raw[~in_session],
        lines[~in_session],
        source=sink.source,
        column=column,
        stated=stated,
        forced=options.time_unit,
        mooncake=form.mooncake_time,
        hash_block=hash_block,
    )
    seconds = raw * unit.seconds
    fixed = seconds[~in_session]
    if form.keeps_zero:
        seconds = seconds + float(sink.clock.base) * unit.seconds
    elif len(fixed):
        seconds = seconds - fixed.min()
    if in_session.any() and options.session_rate_per_s is not None:
        present, code = np.unique(sessions[in_session], return_inverse=True)
        starts = draw_session_starts(len(present), options.session_rate_per_s, options.seed)
        seconds[in_session] = raw[in_session] + starts[code]
        if not len(fixed):
            unit = Unit(1.0, "s", "relative to the start of each session", True)
        notes.append(
            f"{len(present):,} sessions start at {options.session_rate_per_s:g}/s (Poisson, seed {options.seed});"
            " later turns keep their recorded distance, however fast the simulated answers come"
        )
    return seconds, unit


def assemble(
    sink: RowSink,
    form: Format,
    options: ReadOptions,
    *,
    column: str,
    stated: str | None,
    block_stated: int | None,
    sha256: str,
    notes: list[str],
    warnings: list[str],
) -> Trace:
    """The trace of a filled sink.

    Raises:
        TraceError: mixed or absurd time units.
    """
    keep = _duplicates(sink, notes)
    prompts = np.frombuffer(sink.prompts, dtype=np.int32)
    ends = np.frombuffer(sink.hash_ends, dtype=np.int64)
    hash_block = None
    if sink.has_hashes:
        counts = np.diff(ends, prepend=0)
        some = counts > 0
        hash_block = options.hash_block_tokens or block_stated or infer_hash_block(prompts[some], counts[some])
        if hash_block is None:
            warnings.append(
                "prefix hashes are ignored: their number fits no block size on 90 % of the rows;"
                " give --hash-block TOKENS to use them"
            )
        else:
            origin = "given" if options.hash_block_tokens else "stated" if block_stated else "from the lengths"
            notes.append(f"prefix hashes cover {hash_block} tokens each ({origin})")
        if sink.hash_ids.coded:
            notes.append("hash ids that are no 64-bit integers were replaced by 62 bits of their BLAKE2 digest")
    seconds, unit = _arrivals(sink, form, options, keep, column, stated, hash_block, notes)
    if not unit.certain:
        warnings.append(f"the unit of time is a guess: {unit}; --time-unit overrules it")
    rows_kept = len(seconds)
    span = float(np.ptp(seconds))
    if rows_kept >= 10 and span == 0 and options.time_unit is None and not form.keeps_zero:
        raise TraceError(
            f"{sink.source}: all {rows_kept:,} requests arrive at the same time, so the column {column} is no arrival"
            " time; name another with --column arrival=NAME, draw arrivals with --arrivals poisson:RATE, or give"
            " --time-unit s if they really come at once"
        )
    if rows_kept >= 10 and span > 0 and (rows_kept - 1) / span > 10_000 and options.arrivals is None:
        warnings.append(f"{(rows_kept - 1) / span:,.0f} requests/s: is --time-unit {options.time_unit} right?")
    order: np.ndarray | None = None if keep is None else np.flatnonzero(keep)
    backward = int((np.diff(seconds) < 0).sum())
    if backward:
        by_time = np.argsort(seconds, kind="stable")
        seconds = seconds[by_time]
        order = by_time if order is None else order[by_time]
        notes.append(f"rows were not in order of arrival ({backward:,} steps back in time); sorted")
    grid = None
    found = find_grid(seconds) if options.arrivals is None else None
    if found is not None and options.spread_grid:
        grid = found.step_s
        seconds = spread(seconds, found, options.seed)
        notes.append(
            f"arrivals sit on a {found.step_s:g} s grid ({found.cells:,} points, {rows_kept / found.cells:.1f} requests"
            f" each); spread evenly over their cell with seed {options.seed} (--no-spread-grid keeps them)"
        )
    elif found is not None:
        warnings.append(
            f"arrivals sit on a {found.step_s:g} s grid and were left there: requests come in volleys that the real"
            " traffic did not have"
        )

    def column_of(values: object, dtype: type) -> np.ndarray:
        whole = np.frombuffer(values, dtype=dtype)  # type: ignore[call-overload]
        return whole if order is None else whole[order]

    ids = offsets = None
    if hash_block is not None:
        ids, offsets = sink.hash_ids.take(ends, order)
    return Trace(
        arrival_s=seconds,
        prompt_tokens=column_of(sink.prompts, np.int32),
        output_tokens=column_of(sink.outputs, np.int32),
        meta=TraceMeta(
            source=sink.source,
            format=form.name,
            time_unit=str(unit),
            sha256=sha256,
            rows_read=sink.rows_read - (0 if keep is None else len(keep) - rows_kept),
            rows_kept=rows_kept,
            dropped=dict(sink.dropped),
            dropped_examples=dict(sink.examples),
            arrival_grid_s=grid,
            notes=tuple(notes),
            warnings=tuple(warnings),
        ),
        hash_block_tokens=hash_block,
        hash_ids=ids,
        hash_offsets=offsets,
        session=column_of(sink.sessions, np.int32) if sink.session_codes else None,
        task=column_of(sink.tasks, np.int16) if sink.task_codes else None,
        task_names=tuple(sink.task_codes),
    )


def refuse_empty(sink: RowSink) -> None:
    """Refuse a file without a single usable row, saying what was wrong with the rows.

    Raises:
        TraceError: no row was kept.
    """
    if len(sink.prompts):
        return
    if not sink.dropped:
        raise TraceError(f"{sink.source}: no data rows: nothing to plan for")
    reasons = sorted(sink.dropped.items(), key=lambda item: -item[1])
    listed = "; ".join(f"{count:,} {reason} ({sink.examples[reason]})" for reason, count in reasons[:4])
    way_out = ""
    if reasons[0][0] in ("0 prompt tokens", "0 tokens", "prompt tokens missing"):
        way_out = "; if another column holds the prompt's tokens, name it with --column prompt_tokens=NAME"
    raise TraceError(f"{sink.source}: none of {sink.rows_read:,} rows is a usable request: {listed}{way_out}")
