"""`read_trace`: from a path to a checked, sorted, sliced `Trace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specsim.errors import TraceError, nearest
from specsim.traces.assemble import assemble, refuse_empty
from specsim.traces.formats import detect, find_format
from specsim.traces.formats.base import Format, Sample, compact
from specsim.traces.layout import BadRecord, Layout, sniff
from specsim.traces.mapper import RowMapper
from specsim.traces.model import Trace
from specsim.traces.options import ReadOptions
from specsim.traces.sink import RowSink
from specsim.traces.slices import cut
from specsim.traces.source import TextSource

__all__ = ["read_trace"]


def read_trace(
    path: str | Path, options: ReadOptions | None = None, *, progress: Callable[[int], None] | None = None
) -> Trace:
    """Read a request log of any supported format.

    Args:
        path: a file, `-` for standard input, or a directory of ServeGen pairs.
        options: what to overrule; None for all defaults.
        progress: called with the bytes of the file read so far.

    Raises:
        TraceError: the file cannot be read, or using it would make a plan a lie; the message says the way out.
    """
    options = options or ReadOptions()
    with TextSource(path, options.max_line_bytes, progress=progress) as source:
        layout = sniff(source)
        return cut(_read(source, layout, options), options)


def _read(source: TextSource, layout: Layout, options: ReadOptions) -> Trace:
    sample = layout.sample()
    form = find_format(options.trace_format) if options.trace_format else detect(sample)
    notes: list[str] = []
    warnings: list[str] = list(form.notes)
    _check_columns(source.name, layout, sample, form, options)
    sink = RowSink(source.name, options.strict)
    mapper = RowMapper(form, options, sink, sample.keys if layout.kind == "csv" else None)
    take, drop = mapper.take, sink.drop
    for line, record in layout.records():
        if type(record) is dict:
            take(record, line)
        elif isinstance(record, BadRecord):
            drop(line, record.reason, record.detail, bad=record.bad)
    refuse_empty(sink)
    if source.encoding != "UTF-8":
        notes.append(f"text encoding: {source.encoding}")
    if sink.clock.kind == "date" and sink.clock.dates.naive_rows:
        notes.append(f"{sink.clock.dates.naive_rows:,} dates have no time zone and were taken as UTC")
    if sink.clock.dates.month_first_rows:
        notes.append("dates with slashes were read month first")
    stated = "ms" if mapper.delays and form.unit is None else form.unit
    names = options.columns.get("arrival") or next(
        (layout.originals[compact(name)] for name in form.columns.get("arrival", ()) if compact(name) in sample.keys),
        next(iter(form.columns.get("arrival", ("time",)))),
    )
    if "arrival" in options.columns:
        stated = None
    return assemble(
        sink,
        form,
        options,
        column=names,
        stated=stated,
        block_stated=form.hash_block_tokens,
        sha256=source.sha256,
        notes=notes,
        warnings=warnings,
    )


def _check_columns(name: str, layout: Layout, sample: Sample, form: Format, options: ReadOptions) -> None:
    """Refuse a file whose format has no arrivals or counts, before reading all of it."""
    shown = ", ".join(sorted(layout.originals.values())[:12])
    for field, column in options.columns.items():
        if compact(column) not in sample.keys and "." not in column:
            raise TraceError(
                f"{name}: --column {field}={column}: no such column{nearest(column, layout.originals.values())};"
                f" the file has {shown}"
            )
    if form.split is not None:
        return

    def present(field: str) -> bool:
        if field in options.columns:
            return True
        candidates = form.columns.get(field, ())
        return any(compact(c) in sample.keys or compact(c.split(".")[0]) in sample.keys for c in candidates)

    if options.arrivals is None and not present("arrival") and not present("end") and form.times != "session":
        if form.mooncake_time or form.name == "specsim":
            return
        raise TraceError(
            f"{name}: {form.title}: no arrival times; name the column with --column arrival=NAME"
            f" (the file has {shown}), or draw arrivals with --arrivals poisson:RATE"
        )
    if not any(present(field) for field in ("prompt_tokens", "prompt_text", "prompt_bytes")):
        raise TraceError(
            f"{name}: {form.title}: no column of prompt tokens; name it with --column prompt_tokens=NAME"
            f" (the file has {shown})"
        )
    if options.default_output_tokens is None and not any(
        present(field) for field in ("output_tokens", "output_text", "output_bytes")
    ):
        raise TraceError(
            f"{name}: {form.title}: no column of output tokens; name it with --column output_tokens=NAME"
            f" (the file has {shown}), or set all with --default-output TOKENS"
        )
