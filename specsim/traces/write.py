"""Traces back to files: specsim's own JSON Lines (Mooncake keys, so that Mooncake readers read it too) or CSV.

`timestamp` is milliseconds as the shortest decimal that is exact to 0.1 us; the first row carries a `specsim` object
with what no column can: the block size of the hashes and where the trace came from. Leaves out: dropped rows.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from specsim.errors import TraceError
from specsim.traces.model import Trace
from specsim.traces.opening import shown_path

__all__ = ["fingerprint", "write_trace"]

_FORMATS = ("jsonl", "csv")


def _milliseconds(seconds: float) -> int | float:
    value = round(seconds * 1000.0, 4)
    return int(value) if value == int(value) else value


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    head = {
        "specsim": {
            "source": trace.meta.source if trace.meta.format == "synthetic" else Path(trace.meta.source).name,
            "format": trace.meta.format,
            "time_unit": "ms",
            "hash_block_tokens": trace.hash_block_tokens,
            "arrival_grid_s": trace.meta.arrival_grid_s,
        }
    }
    for i in range(len(trace)):
        row: dict[str, Any] = {
            "timestamp": _milliseconds(float(trace.arrival_s[i])),
            "input_length": int(trace.prompt_tokens[i]),
            "output_length": int(trace.output_tokens[i]),
        }
        if trace.hash_ids is not None:
            row["hash_ids"] = trace.hashes(i).tolist()
        if trace.session is not None and trace.session[i] >= 0:
            row["session_id"] = int(trace.session[i])
        if trace.task is not None and trace.task[i] >= 0:
            row["task"] = trace.task_names[int(trace.task[i])]
        if i == 0:
            row.update(head)
        yield row


def _write_jsonl(trace: Trace, out: IO[str]) -> None:
    dumps = json.JSONEncoder(separators=(", ", ": "), ensure_ascii=False).encode
    for row in _rows(trace):
        out.write(dumps(row) + "\n")


def _write_csv(trace: Trace, out: IO[str]) -> None:
    names = ["arrival_s", "prompt_tokens", "output_tokens"]
    names += ["hash_block_tokens", "hash_ids"] if trace.hash_ids is not None else []
    names += ["session_id"] if trace.session is not None else []
    names += ["task"] if trace.task is not None else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for i in range(len(trace)):
        cells: list[object] = [
            f"{float(trace.arrival_s[i]):.7f}".rstrip("0").rstrip("."),
            int(trace.prompt_tokens[i]),
            int(trace.output_tokens[i]),
        ]
        if trace.hash_ids is not None:
            cells.append(trace.hash_block_tokens or "")
            cells.append(" ".join(map(str, trace.hashes(i).tolist())))
        if trace.session is not None:
            cells.append(int(trace.session[i]) if trace.session[i] >= 0 else "")
        if trace.task is not None:
            cells.append(trace.task_names[int(trace.task[i])] if trace.task[i] >= 0 else "")
        writer.writerow(cells)


def write_trace(trace: Trace, path: str | Path, form: str = "jsonl", *, force: bool = False) -> None:
    """Write a trace; a name ending in .gz is compressed. The file appears whole or not at all.

    Args:
        path: where to; `-` writes to standard output.
        form: `jsonl` (reads back to the same trace within 1 us) or `csv`.
        force: replace an existing file.

    Raises:
        TraceError: the file exists and `force` is not set, or it cannot be written.
    """
    if form not in _FORMATS:
        raise TraceError(f"cannot write traces as {form!r}; one of {', '.join(_FORMATS)}")
    write = _write_jsonl if form == "jsonl" else _write_csv
    if str(path) == "-":
        import sys

        write(trace, sys.stdout)
        return
    where = Path(os.path.realpath(path))  # a link stays a link
    if not str(path) or not where.name or where.name == ".." or os.path.isdir(path):
        raise TraceError(f"{str(path)!r} is no name for a file; give one with -o, or - for standard output")
    if os.path.exists(path) and not os.path.isfile(path):
        raise TraceError(f"{path}: is a pipe or a device; name a file, or - for standard output")
    if os.path.exists(path) and not force:
        raise TraceError(f"{path}: exists already; choose another name with -o, or replace it with --force")
    partial = where.with_name(f".{where.name}.{os.getpid()}.part")
    try:
        with contextlib.ExitStack() as stack:
            raw: Any = stack.enter_context(open(partial, "wb"))
            if where.suffix == ".gz":
                raw = stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
            write(trace, stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="")))
        os.replace(partial, where)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{shown_path(path)}: cannot be written: {reason}; choose another name with -o") from None
    finally:
        with contextlib.suppress(OSError, ValueError):
            partial.unlink()


def fingerprint(trace: Trace) -> str:
    """Hex SHA-256 of the requests themselves: equal for equal arrivals, lengths, hashes, sessions and tasks.

    Unlike `meta.sha256` it tells a slice or a rescaled trace from the whole.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([len(trace), trace.hash_block_tokens, trace.task_names]).encode())
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids", "hash_offsets", "session", "task"):
        column = getattr(trace, name)
        digest.update(name.encode() if column is not None else b"-")
        if column is not None:
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
