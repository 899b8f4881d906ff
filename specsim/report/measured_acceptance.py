"""Measured acceptance as text: mean acceptance length by k with its interval, by draft and task, and prompts needed.

Models nothing; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from specsim.acceptance.measured_summary import KSummary, MeasuredSummary
from specsim.report.text import Page

__all__ = ["measured_acceptance_text"]

_READING = (
    "Mean acceptance length: tokens over rounds of all requests, with a 95 % interval over requests. Spread: standard "
    "deviation between requests, sampling noise taken out. Memory: lag-1 autocorrelation of tokens per round within a "
    "request. A task is a column with its own mean acceptance length."
)


def measured_acceptance_text(
    summaries: Sequence[MeasuredSummary], *, wanted_interval: float | None = None, color: bool = False
) -> str:
    """One table for each drafter.

    Args:
        wanted_interval: as given to `summary_of`.
    """
    page = Page(color=color)
    for summary in summaries:
        page.heading(f"{summary.name}: {summary.requests} requests, {summary.output_tokens:,} output tokens")
        if summary.measured_on is not None:
            page.line(f"measured {summary.measured_on}")
        tasks = list(summary.by_k[0].by_task) if summary.by_k else []
        wanted = [] if wanted_interval is None else ["prompts"]
        page.table(
            ("k", "mean acceptance length", "drafted", "spread", "memory", *tasks, *wanted),
            [_row(at, wanted_interval is not None) for at in summary.by_k],
        )
        if summary.by_k:
            last = summary.by_k[-1]
            shares = " ".join(f"{100 * share:.3g}" for share in last.accepted)
            page.line(f"accepted at draft 1 to {last.k}, % of rounds: {shares}")
    page.line()
    page.line(_READING)
    if wanted_interval is not None:
        page.line(f"Prompts: so many, in all, give an interval of ±{100 * wanted_interval:g} % of the length.")
    return page.text()


def _row(at: KSummary, wanted: bool) -> tuple[str, ...]:
    interval = "" if at.low is None or at.high is None else f" ({at.low:.3f}–{at.high:.3f})"
    return (
        str(at.k),
        f"{at.length:.3f}{interval}",
        "-" if at.drafted is None else f"{at.drafted:.2f}",
        f"{at.spread:.3f}",
        f"{at.autocorrelation:+.2f}",
        *(f"{length:.3f}" for length in at.by_task.values()),
        *([] if not wanted else ["-" if at.prompts_wanted is None else f"{at.prompts_wanted:,}"]),
    )
