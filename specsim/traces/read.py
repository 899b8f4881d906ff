"""`read_trace`: from a path to a checked, sorted, sliced `Trace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specsim.errors import TraceError, nearest
from specsim.traces.assemble import assemble, refuse_empty
from specsim.traces.clock import OTHER_KIND
from specsim.traces.formats import detect, find_format
from specsim.traces.formats.base import Format, Sample, compact
from specsim.traces.formats.flat import GENERIC, with_plain_names
from specsim.traces.formats.texts import usage_totals
from specsim.traces.layout import BadRecord, Layout, sniff
from specsim.traces.mapper import RowMapper
from specsim.traces.model import Trace
from specsim.traces.options import ReadOptions
from specsim.traces.servegen import read_servegen
from specsim.traces.sink import RowSink
from specsim.traces.slices import cut, with_note
from specsim.traces.source import TextSource
from specsim.traces.stated import stated_block
from specsim.traces.unused import unused_flags, unused_with_servegen

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
    if not str(path):
        raise TraceError("the name of the trace is empty; give a file, a directory of ServeGen pairs, or - for stdin")
    if str(path) != "-" and (os.path.isdir(path) or options.trace_format == "servegen"):
        return _servegen(path, options)
    with TextSource(path, options.max_line_bytes, progress=progress) as source:
        layout = sniff(source)
        if layout.kind == "servegen":
            return _servegen(path, options)
        return cut(_read(source, layout, options), options)


def _servegen(path: str | Path, options: ReadOptions) -> Trace:
    """ServeGen pairs; the window is chosen while sampling, so only limit and rate are left to do."""
    trace = read_servegen(path, options)
    for note in unused_with_servegen(options):
        trace = with_note(trace, note)
    return cut(trace, replace(options, window=None, busiest_s=None))


def _read(source: TextSource, layout: Layout, options: ReadOptions) -> Trace:
    """The whole trace of one text, before slicing."""
    sample = layout.sample()
    form = find_format(options.trace_format) if options.trace_format else detect(sample)
    if form is GENERIC:
        form = with_plain_names(form, sample)
    if sample.rows or sample.header:
        _check_format(source.name, sample, form, options)
        _check_columns(source.name, layout, sample, form, options)
    sink = RowSink(source.name, options.strict)
    mapper = RowMapper(form, options, sink, sample.keys if layout.kind == "csv" else None)
    for line, record in layout.records():
        if type(record) is dict:
            mapper.take(record, line)
        elif isinstance(record, BadRecord):
            sink.drop(line, record.reason, record.detail, bad=record.bad, count=record.count)
    refuse_empty(sink)
    notes = _notes(source, form, options, sink)
    warnings = _warnings(options, sink, mapper)
    block = stated_block(sample.rows[0] if sample.rows else {}, notes, warnings)
    notes += unused_flags(options, mapper)
    stated = "ms" if mapper.delays and form.unit is None else form.unit
    return assemble(
        sink,
        form,
        options,
        column=_time_column(layout, sample, form, options),
        stated=None if "arrival" in options.columns else stated,
        block_stated=block,
        sha256=source.sha256,
        notes=notes,
        warnings=warnings,
    )


def _time_column(layout: Layout, sample: Sample, form: Format, options: ReadOptions) -> str:
    """The time column as the file spells it."""
    if "arrival" in options.columns:
        return options.columns["arrival"]
    candidates = (*form.columns.get("arrival", ()), *form.columns.get("end", ()))
    present = (layout.originals.get(compact(name), name) for name in candidates if compact(name) in sample.keys)
    return next(present, candidates[0] if candidates else "time")


def _notes(source: TextSource, form: Format, options: ReadOptions, sink: RowSink) -> list[str]:
    """What was detected and assumed while reading."""
    notes = [f"{'read' if options.trace_format else 'detected'} as {form.title}", *form.notes]
    if (
        form.name == GENERIC.name
        and {"prompt_tokens", "output_tokens"} <= options.columns.keys()
        and ({"arrival", "end"} & options.columns.keys() or options.arrivals is not None)
    ):
        notes = ["columns as given"]
    if source.encoding != "UTF-8":
        notes.append(f"text encoding: {source.encoding}")
    dates = sink.clock.dates
    if dates.naive_rows:
        notes.append(f"{dates.naive_rows:,} dates have no time zone and were taken as UTC")
    if dates.month_first_rows:
        notes.append("dates with slashes were read month first")
    if sink.clock.kind == "date" and options.time_unit is not None:
        notes.append(f"the time unit {options.time_unit} was not needed: the time column holds dates")
    return notes


def _warnings(options: ReadOptions, sink: RowSink, mapper: RowMapper) -> list[str]:
    """What of the rows makes the trace less trustworthy.

    Raises:
        TraceError: a time column of dates and numbers.
    """
    other = sink.dropped.get(OTHER_KIND, 0)
    if other > 0.05 * sink.rows_read:
        raise TraceError(
            f"{sink.source}: {sink.examples[OTHER_KIND]}: the time column holds dates and numbers ({other:,} rows"
            " differ from the first): mixed units; make it uniform, or choose another with --column arrival=NAME"
        )
    out: list[str] = []
    if sink.bad_rows > 0.1 * sink.rows_read:
        out.append(
            f"{sink.bad_rows:,} of {sink.rows_read:,} rows are malformed or incomplete and were not used: is the"
            " format right, and the file whole?"
        )
    per_token = options.bytes_per_token or options.chars_per_token
    if mapper.estimated_rows and per_token is not None:
        which = "bytes" if options.bytes_per_token else "text"
        out.append(
            f"tokens of {mapper.estimated_rows:,} rows are estimated from {which} at {per_token[0]:g} (prompt) and"
            f" {per_token[1]:g} (output) a token: lengths are only as good as that"
        )
    if mapper.default_rows:
        out.append(
            f"{mapper.default_rows:,} rows do not say their output: {options.default_output_tokens} tokens assumed"
        )
    if mapper.undelayed_rows:
        out.append(
            f"{mapper.undelayed_rows:,} later turns of a session have no delay and arrive together with the turn"
            " before, since the time of its answer is not known here"
        )
    return out


def _check_format(name: str, sample: Sample, form: Format, options: ReadOptions) -> None:
    """Refuse a format that cannot make a trace without a flag that is missing.

    Raises:
        TraceError: no session starts, no tokens, no single requests.
    """
    if form.name == "openai-usage":
        requests, inputs, outputs, seconds = usage_totals(sample.rows[0])
        way_out = ""
        if requests and seconds:
            way_out = (
                f": specsim trace synth --arrivals poisson:{requests / seconds:.4g} --duration {seconds:.0f}s"
                f" --isl {max(1, round(inputs / requests))} --osl {max(1, round(outputs / requests))} -o trace.jsonl"
            )
        raise TraceError(
            f"{name}: {form.title} hold sums ({requests:,} requests), not single requests; use a synthetic trace of"
            f" that rate and those mean lengths{way_out}"
        )
    if form.times == "session" and options.session_rate_per_s is None and options.arrivals is None:
        raise TraceError(
            f"{name}: {form.title}: times count from the start of each session, and the starts are not in the file;"
            " say how many sessions begin per second, for example --session-rate 0.02"
        )
    if form.times == "none" and options.arrivals is None and "arrival" not in options.columns:
        texts = not any(name in row for row in sample.rows for name in ("prompttokens", "numprefilltokens", "response"))
        also = "; prompts are text, so give --chars-per-token 4 as well to estimate tokens" if texts else ""
        raise TraceError(f"{name}: {form.title}: draw arrivals with --arrivals poisson:RATE (requests/s){also}")
    if form.needs_bytes and options.bytes_per_token is None:
        known = any("prompttokens" in row or "prompttokens" in str(row.get("properties", "")) for row in sample.rows)
        if not known and "prompt_tokens" not in options.columns:
            raise TraceError(
                f"{name}: {form.title}: bytes but no token counts; measure bytes a token on a few requests whose tokens"
                " you know, then estimate with --bytes-per-token PROMPT:OUTPUT, for example 4.8:9.5"
            )
    if form.name == "bench-details" and options.arrivals is None and "starttimes" not in sample.keys:
        rate = sample.rows[0].get("requestrate")
        rate_text = f"{rate:g}" if isinstance(rate, int | float) and 0 < rate < 1e6 else "RATE"
        raise TraceError(
            f"{name}: {form.title}: lengths but no start times; draw arrivals with --arrivals poisson:{rate_text}"
        )


def _check_columns(name: str, layout: Layout, sample: Sample, form: Format, options: ReadOptions) -> None:
    """Refuse a file whose format has no arrivals or counts, before reading all of it."""
    shown = ", ".join(sorted(layout.originals.values())[:12]) or "no columns at all"
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
