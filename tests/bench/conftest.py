"""Prints the ratios of all benchmarks at the end, since a ratio means the same on any machine and a time does not."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    session = getattr(config, "_benchmarksession", None)
    rows = [b for b in getattr(session, "benchmarks", []) if b.extra_info.get("summary")]
    if rows:
        terminalreporter.write_sep("-", "specsim benchmarks")
        for bench in rows:
            terminalreporter.write_line(f"{bench.name}: {bench.extra_info['summary']}")
