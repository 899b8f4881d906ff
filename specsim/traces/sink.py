"""Where rows land: growing columns of numbers while a trace is read, and a count of every row that was not used.

Memory is about 40 bytes a row, plus 4 or 8 a prefix hash. Leaves out: units and order, which need the whole column.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from specsim.errors import TraceError
from specsim.traces.clock import Clock
from specsim.traces.hashes import HashColumn

__all__ = ["RowSink"]

_MOST_TASKS = 1000


class RowSink:
    """Columns of a trace in file order.

    Args:
        source: name for messages.
        strict: raise at the first bad row.
    """

    def __init__(self, source: str, strict: bool) -> None:
        self.source = source
        self.strict = strict
        self.clock = Clock()
        self.times = array("d")
        """Relative to `clock.base`, or seconds from the start of the session where `in_session` is 1."""
        self.prompts = array("i")
        self.outputs = array("i")
        self.lines = array("q")
        self.hash_ids = HashColumn()
        self.hash_ends = array("q")
        self.sessions = array("i")
        self.tasks = array("h")
        self.idents = array("q")
        self.in_session = array("b")
        self.session_codes: dict[Any, int] = {}
        self.task_codes: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.bad_rows = 0
        self.has_idents = False
        self.has_hashes = False

    @property
    def rows_read(self) -> int:
        """Rows kept so far and rows dropped."""
        return len(self.prompts) + sum(self.dropped.values())

    def drop(self, line: int, reason: str, detail: str = "", *, bad: bool = True, count: int = 1) -> None:
        """Count a row that is not used; `bad` rows are refused when strict.

        Raises:
            TraceError: a bad row while strict.
        """
        text = f"line {line}: {detail}" if detail else f"line {line}"
        if bad:
            if self.strict:
                raise TraceError(
                    f"{self.source}: line {line}: {reason}{': ' + detail if detail else ''};"
                    " without --strict such rows are counted and left out"
                )
            self.bad_rows += count
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.examples.setdefault(reason, text)

    def add(
        self,
        line: int,
        time: float,
        prompt: int,
        output: int,
        hash_ids: Sequence[Any] | None = None,
        session: Any = None,
        task: str | None = None,
        ident: Any = None,
        in_session: bool = False,
        local_hashes: bool = False,
    ) -> None:
        """Append one request; everything is checked before anything is written.

        Args:
            time: from `clock.read`, or seconds since the session began when `in_session`.
            local_hashes: the same id in another session is another block.

        Raises:
            RowProblem: hash ids of a wrong type.
        """
        code = -1
        if session is not None:
            code = self.session_codes.get(session, -1)
            if code < 0:
                code = self.session_codes[session] = len(self.session_codes)
        if hash_ids is not None:
            self.hash_ids.add(hash_ids, code if local_hashes else None)
            self.has_hashes = self.has_hashes or len(hash_ids) > 0
        self.hash_ends.append(len(self.hash_ids))
        self.times.append(time)
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.lines.append(line)
        self.in_session.append(in_session)
        self.sessions.append(code)
        if task is None:
            self.tasks.append(-1)
        else:
            number = self.task_codes.get(task, -1)
            if number < 0 and len(self.task_codes) < _MOST_TASKS:
                number = self.task_codes[task] = len(self.task_codes)
            self.tasks.append(number)
        if ident is None:
            self.idents.append(hash(("no id", line, len(self.idents))))
        else:
            self.has_idents = True
            self.idents.append(hash(ident))
