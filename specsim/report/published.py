"""The text of `specsim validate published`, from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specsim.report.text import Page

__all__ = ["assumptions", "by_reason", "named_ids", "null_sentences", "published_text", "shown_load",
           "signed"]  # fmt: skip

_SHORT = {"given": "given", "catalogue": "catal.", "anchor": "anchor", "anchored": "sweep", "loaded": "k=0"}


def published_text(result: Mapping[str, Any], *, color: bool = False) -> str:
    """Rows by source, what was assumed, what could not be predicted, and how it came out; at most 100 columns."""
    page = Page(color=color)
    for source in dict.fromkeys(row["source"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["source"] == source]
        page.heading(source)
        page.table(
            ["id", "method", "load", "from", "length", "measured", "ours", "error", "null", "error", "off", "on"],
            [cells for row in rows for cells in _cells(row)],
            left=2,
        )
        for text, ids in assumptions(rows).items():
            page.line(f"{text}: {named_ids(ids)}")
        for row in rows:
            for prediction in row["predictions"]:
                if prediction["warning"] and prediction["protocol"] == "anchor":
                    page.line(f"{row['id']}: {prediction['warning']}")
    if result["unpredictable"]:
        page.heading("Not predicted")
        for reason, ids in by_reason(result["unpredictable"]).items():
            page.line(f"{named_ids(ids)}: {reason}")
    page.heading("Summary")
    page.table(
        ["from", "rows", "n", "sign", "median", "p90", "mean", "null", "median", "p90"],
        [_summary_cells(entry) for entry in result["summary"]],
        left=2,
    )
    for protocol, words in result["protocols"].items():
        if any(entry["protocol"] == protocol for entry in result["summary"]):
            page.line(f"{_SHORT[protocol]}: {words}.")
    page.line(
        "complete: rows that state target, hardware, method and k; incomplete: one of these is assumed; sets "
        "a factor: a factor was set by them, so that they are no test. sign, "
        "null: share of signs right, ours and the null model's, where |measured - 1| > 5 %; median, p90: of |error|, "
        "ours and then the null model's; mean: of the error with its sign."
    )
    for sentence in null_sentences(result):
        page.line(sentence)
    return page.text()


def null_sentences(result: Mapping[str, Any]) -> list[str]:
    """What the null models are, for those that were used."""
    used = {prediction["null_model"] for row in result["rows"] for prediction in row["predictions"]}
    said = {
        "linear fit": "null, linear fit (Llama-3.1-8B, bf16, one H100): seconds 3.926e-8 a cached token + 2.101e-5 a "
        "token + 5.886e-3 a pass + 1.207e-3 a step; the drafter's round 2.378e-9 a cached token + 2.135e-3, times k/3, "
        "+ 8.414e-7 a draft; speed-up = length x plain step / round.",
        "roofline": "null, roofline: a pass takes the longer of all weights over the bandwidth and 2 x active "
        "parameters x tokens over the dense rate, plus the cache over the bandwidth, at full datasheet rates; speed-up "
        "= length x T(b) / (T(b (1 + drafts)) + k D(b)), which is E / (1 + k c) where memory bounds.",
    }
    return [text for name, text in said.items() if name in used]


def signed(error: float | None) -> str:
    """`+3.1%`, `-12%`, or `-`."""
    return "-" if error is None else f"{error:+.1%}"


def shown_load(row: Mapping[str, Any]) -> str:
    """`16`, or `2.5/s`."""
    return str(row["concurrency"]) if row["rate_per_s"] is None else f"{row['rate_per_s']:g}/s"


def _cells(row: Mapping[str, Any]) -> list[list[str]]:
    drafts = f"k={row['k']}" if row["tree_nodes"] is None else f"{row['k']}/{row['tree_nodes']}"
    found = []
    for p in row["predictions"]:
        found.append([
            row["id"], f"{row['method']} {drafts}", shown_load(row), _SHORT[p["protocol"]],
            f"{p['acceptance_length']:.2f}", f"{row['measured']:.3f}",
            "-" if p["speedup"] is None else f"{p['speedup']:.3f}", signed(p["error"]),
            "-" if p["null"] is None else f"{p['null']:.3f}", signed(p["null_error"]),
            _whole(p["off_error"]), _whole(p["on_error"]),
        ])  # fmt: skip
    return found


def assumptions(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Assumption -> ids of the rows that it fills."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for text in row["assumed"]:
            found.setdefault(text, []).append(row["id"])
    return found


def by_reason(items: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Reason -> ids of the rows that are not predicted for it."""
    found: dict[str, list[str]] = {}
    for item in items:
        found.setdefault(item["reason"], []).append(item["id"])
    return found


def named_ids(ids: Sequence[str]) -> str:
    """One id, or the first, the last and how many."""
    return ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]} ({len(ids)} rows)"


def _summary_cells(entry: Mapping[str, Any]) -> list[str]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    name = entry["name"] if entry["group"] in ("all", "incomplete") else f"{entry['group']} {entry['name']}"
    return [
        _SHORT[entry["protocol"]], name, str(entry["points"]), share(entry["sign_right_share"]),
        f"{entry['median_error']:.1%}", f"{entry['p90_error']:.1%}", signed(entry["mean_signed_error"]),
        share(entry["null_sign_right_share"]), f"{entry['null_median_error']:.1%}", f"{entry['null_p90_error']:.1%}",
    ]  # fmt: skip


def _whole(error: float | None) -> str:
    return "-" if error is None else f"{error:+.0%}"
