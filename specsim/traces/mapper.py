"""One record to one request: finds the columns, reads the values strictly, and says why a row cannot be used."""

from __future__ import annotations

from typing import Any

from specsim.checks import plain
from specsim.traces.clock import epoch_unit, suffix_unit
from specsim.traces.formats.base import Format, Row, compact, dig, text_chars
from specsim.traces.options import TIME_UNITS, ReadOptions
from specsim.traces.sink import RowSink
from specsim.traces.values import RowProblem, read_count, read_number, show

__all__ = ["RowMapper"]

_LONGEST_SESSION_S = 1e8
_Keys = tuple[tuple[str, tuple[str, ...]], ...]


def _keys(names: tuple[str, ...]) -> _Keys:
    """Compact names, each with its path when it has dots."""
    out = []
    for name in names:
        short = compact(name)
        path = tuple(compact(part) for part in name.split(".")) if "." in name else ()
        out.append((short, path))
    return tuple(out)


def _get(row: Row, keys: _Keys) -> Any:
    """First value under any of the keys that is not null or an empty cell."""
    for key, path in keys:
        value = row.get(key)
        if value is None and path:
            value = dig(row, path)
        if value is not None and value != "":
            return value
    return None


class RowMapper:
    """Feeds records of one format into a sink.

    Args:
        form: the format.
        options: what the user overruled.
        sink: where requests land.
        known: compact column names when no others can follow (CSV), else None.
    """

    def __init__(self, form: Format, options: ReadOptions, sink: RowSink, known: frozenset[str] | None) -> None:
        self.form = form
        self.options = options
        self.sink = sink
        self._split = form.split
        self._skip = form.skip
        columns = {name: tuple(value) for name, value in form.columns.items()}
        columns.update({name: (column,) for name, column in options.columns.items()})
        keys = {name: _keys(value) for name, value in columns.items()}
        if known is not None and self._split is None:
            keys = {name: tuple(key for key in value if key[0] in known) for name, value in keys.items()}
        by_end = "end" in options.columns and "arrival" not in options.columns
        self._arrival = () if by_end else keys.get("arrival", ())
        self._end = keys.get("end", ())
        self._duration = keys.get("duration", ())
        self._prompt = keys.get("prompt_tokens", ())
        self._output = keys.get("output_tokens", ())
        self._hashes = keys.get("hash_ids", ())
        self._session = keys.get("session", ())
        self._task = keys.get("task", ())
        self._ident = keys.get("id", ())
        self._texts = (keys.get("prompt_text", ()), keys.get("output_text", ()))
        self._bytes = (keys.get("prompt_bytes", ()), keys.get("output_bytes", ()))
        suffix = suffix_unit(options.columns.get("duration", ""))
        self._duration_unit_s = TIME_UNITS[suffix or form.duration_unit]
        self._no_time = options.arrivals is not None
        self.delays = False
        self.estimated_rows = 0
        self.rows_from_bytes = 0
        self.rows_from_text = 0
        self._estimated = False
        self.default_rows = 0
        self.undelayed_rows = 0
        self._session_time: dict[Any, float] = {}
        self._offset_s: dict[Any, float] = {}
        self._chained = form.name == "bailian" and "session" not in options.columns
        self._roots: dict[Any, Any] = {}

    def take(self, record: Row, line: int) -> None:
        """Add the requests of one record, or count why not."""
        if self._split is None:
            self._one(record, line)
        else:
            for row in self._split(record):
                self._one(row, line)

    def _one(self, row: Row, line: int) -> None:
        sink = self.sink
        reason = row.get("skip") if self._split is not None else None
        if reason is None and self._skip is not None:
            reason = self._skip(row)
        if reason is not None:
            sink.drop(line, reason, bad=False)
            return
        try:
            if self._split is not None and "bad" in row:
                raise RowProblem(row["bad"], row.get("detail", ""))
            self._estimated = False
            prompt = self._count(row, self._prompt, "prompt tokens", 0)
            output = self._count(row, self._output, "output tokens", 1)
            if prompt < 1 or output < 1:
                which = "tokens" if prompt < 1 and output < 1 else "prompt tokens" if prompt < 1 else "output tokens"
                if self.form.zero_is_failure:
                    sink.drop(line, f"failed request (0 {which})", bad=False)
                    return
                raise RowProblem(f"0 {which}")
            session = _get(row, self._session) if self._session else None
            if session is not None and type(session) is not str and type(session) is not int:
                session = str(session)
            time, in_session = (0.0, False) if self._no_time else self._time(row, session)
            hashes = _get(row, self._hashes) if self._hashes else None
            if hashes is not None and type(hashes) is str:
                hashes = self._listed(hashes)
            if self._chained:
                session = self._root(row)
            task = _get(row, self._task) if self._task else None
            ident = _get(row, self._ident) if self._ident else None
            sink.add(
                line,
                time,
                prompt,
                output,
                hashes,
                session,
                None if task is None else str(task),
                ident if ident is None or type(ident) is str or type(ident) is int else str(ident),
                in_session,
                self.form.local_hashes,
            )
            self.estimated_rows += self._estimated
        except RowProblem as problem:
            sink.drop(line, problem.reason, problem.detail)

    def _count(self, row: Row, keys: _Keys, what: str, side: int) -> int:
        for key, path in keys:
            value = row.get(key)
            if value is None and path:
                value = dig(row, path)
            if value is not None and value != "":
                return value if type(value) is int and 0 <= value < 100_000_000 else read_count(value, what)
        return self._guess(row, what, side)

    def _guess(self, row: Row, what: str, side: int) -> int:
        """Tokens of a row that has no count: from bytes, from text, or the default the user gave."""
        sizes = self._bytes[side]
        size = _get(row, sizes) if sizes else None
        if size is not None and self.options.bytes_per_token:
            self._estimated = True
            self.rows_from_bytes += 1
            return self._estimate(read_count(size, f"{what} bytes"), self.options.bytes_per_token[side], what)
        text = _get(row, self._texts[side]) if self._texts[side] else None
        if side == 1 and self.options.default_output_tokens is not None and text is None:
            self.default_rows += 1
            return self.options.default_output_tokens
        if text is not None:
            chars = read_count(text, what) if type(text) is int else text_chars(text)
            if chars is None:
                raise RowProblem(f"{what} missing", f"text is {show(text)}")
            if self.options.chars_per_token:
                self._estimated = True
                self.rows_from_text += 1
                return self._estimate(chars, self.options.chars_per_token[side], what)
            raise RowProblem(f"{what} missing, only text (--chars-per-token estimates them)")
        if size is not None:
            raise RowProblem(f"{what} missing, only bytes (--bytes-per-token estimates them)")
        raise RowProblem(f"{what} missing" + (" (--default-output sets them)" if side else ""))

    @staticmethod
    def _estimate(size: int, per_token: float, what: str) -> int:
        return read_count(max(1, round(size / per_token)), what) if size > 0 else 0

    def _time(self, row: Row, session: Any) -> tuple[float, bool]:
        """(relative time, whether it counts from the start of its session)."""
        value = _get(row, self._arrival)
        if self.form.times == "session":
            if self.options.session_rate_per_s is None:
                raise RowProblem("time relative to a session without a start (--session-rate draws starts)")
            offset_s = float(read_number(value, "time"))
            if not 0 <= offset_s <= _LONGEST_SESSION_S:
                raise RowProblem("time outside its session", show(value))
            return offset_s, True
        if value is None and self._end:
            return self._from_end(row), False
        if self.form.mooncake_time or self.form.name == "specsim":
            return self._turn(row, session, value)
        return self.sink.clock.read(value), False

    def _from_end(self, row: Row) -> float:
        """Arrival of a request that is stamped when it ends and says how long it took."""
        clock = self.sink.clock
        end = clock.read(_get(row, self._end))
        duration_s = read_number(_get(row, self._duration), "duration") * self._duration_unit_s
        if not 0 <= duration_s <= _LONGEST_SESSION_S:
            raise RowProblem("duration out of range", show(duration_s))
        if clock.kind == "date":
            return end - duration_s * 1e7
        unit = self.options.time_unit or self.form.unit or suffix_unit(self._end[0][0]) or epoch_unit(clock.base)
        return end - duration_s / TIME_UNITS[unit or "s"]

    def _turn(self, row: Row, session: Any, value: Any) -> tuple[float, bool]:
        """aiperf's multi-turn rows: a later turn has no timestamp but a delay in ms after the turn before."""
        delay = row.get("delay")
        if value is not None:
            time = self.sink.clock.read(value)
            if session is not None:
                self._session_time[session] = time
            return time, False
        if session is None:
            return self.sink.clock.read(None), False
        wait_ms = 0.0 if delay is None else float(read_number(delay, "delay"))
        if not 0 <= wait_ms <= _LONGEST_SESSION_S * 1000:
            raise RowProblem("delay out of range", show(delay))
        self.delays = self.delays or delay is not None
        if session in self._session_time:
            self.undelayed_rows += delay is None
            self._session_time[session] += wait_ms
            return self._session_time[session], False
        if self.options.session_rate_per_s is None:
            raise RowProblem("turn of a session without a start time (--session-rate draws starts)")
        self.undelayed_rows += delay is None and session in self._offset_s
        offset_s = self._offset_s.get(session, 0.0) + wait_ms / 1000
        self._offset_s[session] = offset_s
        return offset_s, True

    def _root(self, row: Row) -> Any:
        """First chat of a chain of turns (Bailian)."""
        chat, parent = (
            value if value is None or type(value) in (int, str) else str(value)
            for value in (row.get("chatid"), row.get("parentchatid"))
        )
        if parent in (None, -1, "-1", ""):
            self._roots[chat] = chat
            return chat
        return self._roots.setdefault(chat, self._roots.get(parent, parent))

    def _listed(self, text: str) -> list[Any]:
        """Hash ids of a CSV cell: `[1, 2]`, `1 2`, `1;2` or `1|2`."""
        parts = text.strip().strip("[]").replace(",", " ").replace(";", " ").replace("|", " ").split()
        try:
            plain(text)
            return [int(part) for part in parts]
        except ValueError:
            return list(parts)
