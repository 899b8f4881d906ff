"""The shape of a text: CSV, JSON Lines, one JSON array or object, Envoy's line format; and its records one by one.

Told from the first 256 KiB. Leaves out: what the columns mean. Records are dicts with compact column names, one alive
at a time; a JSON array is read element by element.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from specsim.errors import TraceError
from specsim.traces.formats.base import Row, Sample, compact
from specsim.traces.source import BlankLines, TextSource

__all__ = ["BadRecord", "Layout", "sniff"]

_SAMPLE_ROWS = 50
_LARGEST_DOCUMENT_BYTES = 64 << 20
_ENVOY = re.compile(
    r'\[(?P<time>\d{4}-[^\]]+)\] "(?P<method>\S+) (?P<path>\S+)[^"]*" (?P<status>\d+) (?P<flags>\S+)'
    r" (?P<received>\d+) (?P<sent>\d+) (?P<duration>\S+)"
)
_GAP = re.compile(r"[ \t\r\n,]*")
_SERVEGEN_LENGTHS = re.compile(rb'\s*\{\s*"[\d.]+"\s*:\s*\{\s*"(?:in|out)put_tokens"\s*:\s*"\{')
_SERVEGEN = re.compile(rb"\s*\d+(?:\.\d+)?,[\d.eE+-]+,[\d.eE+-]+,(?:Gamma|Weibull|),[\d.eE+-]+,[\d.eE+-]+\s*$")


class BadRecord:
    """A stretch of text that is no record: why, what it looks like, and how many lines it has."""

    __slots__ = ("bad", "count", "detail", "reason")

    def __init__(self, reason: str, detail: str = "", *, bad: bool = True, count: int = 1) -> None:
        self.reason = reason
        self.detail = detail
        self.bad = bad
        self.count = count


class _Names(dict[str, str]):
    """Cache from a raw column name to its compact form."""

    def __missing__(self, name: str) -> str:
        self[name] = value = compact(name)
        return value


class Layout:
    """How the text is cut into records.

    Attributes:
        kind: csv, jsonl, array, document, envoy or servegen.
        originals: compact name -> the name as the file spells it.
    """

    def __init__(self, source: TextSource, kind: Literal["csv", "jsonl", "array", "document", "envoy", "servegen"]):
        self.source = source
        self.kind = kind
        self.delimiter = ","
        self.header: list[str] = []
        self.numbered = False
        self._names = _Names()
        self._whole: tuple[int, Row] | None = None

    @property
    def originals(self) -> dict[str, str]:
        """Compact column name -> the file's spelling."""
        return {short: name for name, short in self._names.items()} | {compact(name): name for name in self.header}

    def sample(self) -> Sample:
        """The first records, read from the head without consuming it."""
        if self.kind == "document":
            self._whole = next(self._document(self.source.chunks()))
            row = self._whole[1]
            return Sample(keys=frozenset(row), rows=(row,))
        rows: list[Row] = []
        lines = self.source.head.split(b"\n")
        if len(lines) > 1 and not self.source.head_is_all:
            lines = lines[:-1]
        for _, record in self._records(iter(lines), iter([self.source.head]), True):
            if isinstance(record, dict):
                rows.append(record)
                if len(rows) >= _SAMPLE_ROWS:
                    break
        keys = frozenset(key for row in rows for key in row)
        if self.kind == "csv" and not rows:
            keys = frozenset(compact(name) for name in self.header)
        return Sample(keys=keys, rows=tuple(rows), header=self.kind == "csv")

    def records(self) -> Iterator[tuple[int, Row | BadRecord]]:
        """(line number, record) of the whole text.

        Raises:
            TraceError: text whose structure is broken beyond single rows.
        """
        if self._whole is not None:
            return iter([self._whole])
        lines = self.source.lines() if self.kind in ("csv", "jsonl", "envoy") else iter(())
        chunks = self.source.chunks() if self.kind in ("array", "document") else iter(())
        return self._records(lines, chunks)

    def _records(
        self, lines: Iterator[bytes], chunks: Iterator[bytes], partial: bool = False
    ) -> Iterator[tuple[int, Row | BadRecord]]:
        if self.kind == "csv":
            return self._csv(lines)
        if self.kind == "jsonl":
            return self._jsonl(lines)
        if self.kind == "envoy":
            return self._envoy(lines)
        if self.kind == "array":
            return self._array(chunks, partial)
        return iter(self._document(chunks))

    def _csv(self, lines: Iterator[bytes]) -> Iterator[tuple[int, Row | BadRecord]]:
        more = [0]  # lines of the blank stretch just read beyond its first

        def texts() -> Iterator[str]:
            for line in lines:
                more[0] += line.number_of_lines - 1 if type(line) is BlankLines else 0
                yield line.decode("utf-8", "replace")

        reader = csv.reader(texts(), delimiter=self.delimiter)
        names = [compact(name) for name in self.header]
        width = len(names)
        in_header = not self.numbered
        line = extra = 0
        while True:
            extra, more[0] = extra + more[0], 0
            try:
                fields = next(reader)
                line = reader.line_num + extra
            except StopIteration:
                return
            except csv.Error as error:
                if "NUL" in str(error):
                    line = reader.line_num + extra
                    yield line, BadRecord("unreadable CSV row", "it holds a NUL byte")
                    continue
                raise TraceError(
                    f"{self.source.name}: line {line + 1}: {error}: a quote is probably opened and never closed;"
                    " fix that line, then read the file again"
                ) from None
            if in_header:
                if fields:
                    in_header = False
                continue
            if len(fields) != width:
                if not fields or (len(fields) == 1 and not fields[0].strip()):
                    yield line, BadRecord("blank line", bad=False, count=1 + more[0])
                else:
                    detail = f"{len(fields)} columns where the header has {width}"
                    yield line, BadRecord("wrong number of columns", detail)
                continue
            yield line, dict(zip(names, fields, strict=True))

    def _jsonl(self, lines: Iterator[bytes]) -> Iterator[tuple[int, Row | BadRecord]]:
        names, number, loads = self._names, 0, json.loads
        for line in lines:
            number += 1
            try:
                record = loads(line)
            except (ValueError, RecursionError) as error:
                if not line.strip():
                    count = line.number_of_lines if type(line) is BlankLines else 1
                    yield number, BadRecord("blank line", bad=False, count=count)
                    number += count - 1
                    continue
                what = str(error) if isinstance(error, UnicodeDecodeError) else getattr(error, "msg", "too deep")
                yield number, BadRecord("not valid JSON", f"{what}: {line[:40].decode('utf-8', 'replace')!r}")
                continue
            if type(record) is dict:
                yield number, {names[key]: value for key, value in record.items()}
            else:
                yield number, BadRecord("not a JSON object", repr(record)[:60])

    def _envoy(self, lines: Iterator[bytes]) -> Iterator[tuple[int, Row | BadRecord]]:
        number = 0
        for line in lines:
            number += 1
            text = line.decode("utf-8", "replace")
            match = _ENVOY.match(text)
            if match:
                yield number, {f"envoy{name}": value for name, value in match.groupdict().items()}
            elif text.strip():
                yield number, BadRecord("not an Envoy access line", repr(text[:60]))
            else:
                count = line.number_of_lines if type(line) is BlankLines else 1
                yield number, BadRecord("blank line", bad=False, count=count)
                number += count - 1

    def _array(self, chunks: Iterator[bytes], partial: bool) -> Iterator[tuple[int, Row | BadRecord]]:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        scan = json.JSONDecoder().raw_decode
        text, at, line, more = "", 0, 1, True
        bound = self.source.max_line_bytes
        names = self._names
        started = False
        while True:
            begin, at = at, _GAP.match(text, at).end()  # type: ignore[union-attr]
            if not started and text[at : at + 1] == "[":
                started, at = True, _GAP.match(text, at + 1).end()  # type: ignore[union-attr]
            line += text.count("\n", begin, at)
            if at < len(text) and text[at] == "]":
                return
            try:
                if at >= len(text):
                    raise ValueError
                record, end = scan(text, at)
                if end == len(text) and more:
                    raise ValueError
            except (ValueError, RecursionError) as error:
                if more and not isinstance(error, RecursionError):
                    if len(text) - at > bound:
                        raise TraceError(
                            f"{self.source.name}: line {line}: one array element is longer than {bound >> 20} MiB or"
                            " is broken; write the records as JSON Lines, or raise the bound with --max-line"
                        ) from None
                    chunk = next(chunks, b"")
                    more = bool(chunk)
                    text, at = text[at:] + decode(chunk, not more), 0
                    continue
                if not partial:
                    what = "the JSON array ends early" if at >= len(text) else getattr(error, "msg", "too deep")
                    yield line, BadRecord("not valid JSON", f"{what}: {text[at : at + 40]!r}; the rest is not read")
                return
            if type(record) is dict:
                yield line, {names[key]: value for key, value in record.items()}
            else:
                yield line, BadRecord("not a JSON object", repr(record)[:60])
            line += text.count("\n", at, end)
            at = end

    def _document(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, Row]]:
        data = bytearray()
        for chunk in chunks:
            data += chunk
            if len(data) > _LARGEST_DOCUMENT_BYTES:
                raise TraceError(
                    f"{self.source.name}: one JSON object of more than {_LARGEST_DOCUMENT_BYTES >> 20} MiB; write its"
                    " records as JSON Lines, for example with jq -c '.spans[]'"
                )
        try:
            record = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise TraceError(
                f"{self.source.name}: line {getattr(error, 'lineno', 1)}: not valid JSON"
                f" ({getattr(error, 'msg', 'too deep')}): is the file complete?"
            ) from None
        yield 1, {self._names[key]: value for key, value in record.items()}


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _header(layout: Layout, line: bytes) -> None:
    """Delimiter and column names of a CSV from its first line."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    bare = re.sub(r'"[^"]*"', "", text)
    layout.delimiter = max(",\t;|", key=bare.count)
    try:
        cells = next(csv.reader([text], delimiter=layout.delimiter))
    except (csv.Error, StopIteration):
        cells = []
    named = any(re.search(r"[A-Za-z_]", cell) and not re.search(r"\d{4}-\d\d-\d\d", cell) for cell in cells)
    layout.numbered = not named
    layout.header = [cell.strip() for cell in cells] if named else [f"#{n}" for n in range(1, len(cells) + 1)]


def sniff(source: TextSource) -> Layout:
    """The layout of a text from its head.

    Raises:
        TraceError: nothing but blanks, or text that is neither CSV nor JSON nor a known log line.
    """
    head = source.head.lstrip()
    if not head:
        where = "holds" if source.head_is_all else f"begins with {len(source.head) >> 10} KiB of"
        raise TraceError(f"{source.name}: the file {where} nothing but blank lines; give a log with requests in it")
    lines = [line for line in source.head.split(b"\n") if line.strip()]
    first = lines[0].strip()
    if _ENVOY.match(first.decode("utf-8", "replace")):
        return Layout(source, "envoy")
    if _SERVEGEN.match(first) or _SERVEGEN_LENGTHS.match(head[:512]):
        return Layout(source, "servegen")
    if first.startswith(b"{"):
        if type(_loads(first)) is dict or (len(lines) > 1 and lines[1].lstrip().startswith(b"{")):
            return Layout(source, "jsonl")
        return Layout(source, "jsonl" if len(lines) == 1 else "document")
    if first.startswith(b"["):
        return Layout(source, "array")
    layout = Layout(source, "csv")
    _header(layout, lines[0])
    if len(layout.header) < 2:
        shown = first[:40].decode("utf-8", "replace")
        raise TraceError(
            f"{source.name}: neither JSON Lines nor CSV: the first line is {shown!r}; export the log with one request"
            " a line, or see `specsim trace inspect --help` for the formats that are read"
        )
    repeated = {name for name in layout.header if layout.header.count(name) > 1 and name}
    if repeated:
        raise TraceError(f"{source.name}: the header has the column {sorted(repeated)[0]!r} twice; rename one of them")
    return layout
