"""`docs/validation.md`: what theory, laws and published measurements say of the simulator, from JSON forms.

Models nothing; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specsim.planner.theory import Comparison
from specsim.report.benched import benched_section
from specsim.report.published import assumptions, by_reason, named_ids, null_sentences, shown_load, signed
from specsim.report.served import served_section

__all__ = ["validation_page"]

_MISS = 0.10
"""Error of a speed-up from which on a row is a miss that needs a reason."""
_INTRO = """\
# Validation

What was computed by theory, what other people measured, and what specsim says, side by side. The whole page is written
by one command:

```console
specsim validate published -o docs/validation.md
```

Nothing is fitted row by row: one set of efficiency factors ([model.md](model.md)) and one set of acceptance defaults
serve every row. What comes out wrong stays in, with the reason as far as it is known."""
_PROTOCOLS = {
    "given": "acceptance given",
    "anchored": "sweep over load",
    "catalogue": "acceptance from the catalogue",
    "loaded": "k = 0, loaded",
    "anchor": "anchor of a sweep",
}


def validation_page(
    published: Mapping[str, Any],
    theory: Sequence[tuple[str, Sequence[Comparison]]],
    laws: Sequence[tuple[str, str]],
    misses: Sequence[Mapping[str, Any]],
    served: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page as Markdown.

    `theory`: (title, comparisons); `laws`: (law, test) of `laws.md`, empty when it is not at hand; `misses`: groups of
    rows that are known to come out wrong, with `rows`, `why` and optionally `protocols`; `served`: results of
    `specsim validate serve`.
    """
    parts = [_INTRO, _outcome(published)]
    for title, comparisons in theory:
        parts.append(_theory(title, comparisons))
    parts.append(_laws(laws))
    parts.append(served_section([result for result in served if result.get("kind") != "bench"]))
    parts.append(benched_section([result for result in served if result.get("kind") == "bench"]))
    parts.append("## Published measurements")
    parts.append(_how_read(published))
    for source in dict.fromkeys(row["source"] for row in published["rows"]):
        parts.append(_source(source, [row for row in published["rows"] if row["source"] == source]))
    parts.append(_wrong(published, misses))
    parts.append(_unpredictable(published))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _outcome(published: Mapping[str, Any]) -> str:
    rows = []
    for entry in published["summary"]:
        if entry["group"] not in ("all", "sets") or entry["protocol"] == "anchor":
            continue
        counts = entry["group"] == "all"
        aims = published["targets"].get(entry["protocol"], {}) if counts else {}
        sign_aim, median_aim = aims.get("sign_right_share"), aims.get("median_error")
        rows.append([
            _PROTOCOLS[entry["protocol"]] + ("" if counts else ", rows that set a factor"), str(entry["points"]),
            _share(entry["sign_right_share"]) + ("" if sign_aim is None else f" (aim {sign_aim:.0%})"),
            f"{entry['median_error']:.1%}" + ("" if median_aim is None else f" (aim {median_aim:.0%})"),
            f"{entry['p90_error']:.1%}", signed(entry["mean_signed_error"]),
            f"{_share(entry['null_sign_right_share'])}, {entry['null_median_error']:.1%}, "
            f"{entry['null_p90_error']:.1%}",
        ])  # fmt: skip
    columns = ["protocol", "points", "sign right", "median error", "p90", "mean", "null model: sign, median, p90"]
    said = " ".join(f"*{_PROTOCOLS[name]}*: {words}." for name, words in published["protocols"].items())
    return "\n\n".join([
        "## In short",
        "Errors are of the speed-up, predicted over measured less 1; median and p90 of their sizes. A sign counts "
        "where the measured speed-up differs from 1 by more than 5 %. Rows that leave open target, hardware, method or "
        "k are predicted too, further down, but not counted here. Rows by whose speed-ups a factor was set are no "
        "test, and are counted apart.",
        _table(columns, rows),
        said,
    ])  # fmt: skip


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _theory(title: str, comparisons: Sequence[Comparison]) -> str:
    rows = [
        [
            item.what,
            f"{item.theory:.4g}",
            f"{item.simulated.mean:.4g}",
            f"{item.simulated.low:.4g} to {item.simulated.high:.4g}",
            "yes" if item.holds else "**no**",
        ]
        for item in comparisons
    ]
    return f"## {title}\n\n" + _table(["", "theory", "simulated", "99 % interval", "holds theory"], rows)


def _laws(laws: Sequence[tuple[str, str]]) -> str:
    said = (
        "## Laws\n\nWhat must hold in every run is in [laws.md](laws.md), each law with the test that can break it; "
        "the tests draw random traces, disciplines, limits, drafters, policies and acceptance (hypothesis)."
    )
    if not laws:
        return said
    return said + f" The {len(laws)} of them:\n\n" + _table(["law", "test"], laws)


def _how_read(published: Mapping[str, Any]) -> str:
    settings = published["settings"]
    null = "\n".join(f"- {sentence}" for sentence in null_sentences(published))
    return (
        f"Rows: {published['rows_from']}, {len(published['rows'])} predicted and {len(published['unpredictable'])} "
        f"not. "
        f"Each is a closed loop at the row's load, speculation off and on with the same requests and luck, "
        f"{settings['seeds']} seeds from {settings['seed']} on. *From* says where acceptance comes from, *length* the "
        f"mean acceptance length used (bonus included). *off* and *on* are errors of the absolute figures, where the "
        f"row has them.\n\nThe null models:\n\n{null}"
    )


def _source(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = ["row", "target, GPU", "drafts", "prompt, output", "load", "from", "length", "measured", "specsim",
               "error", "null", "error", "off", "on"]  # fmt: skip
    cells = []
    for row in rows:
        drafts = f"{row['method']} k={row['k']}"
        if row["tree_nodes"] is not None:
            drafts = f"{row['method']} tree {row['tree_nodes']}, depth {row['k']}"
        where = f"{row['target']}, {row['gpu']}" + (f" x{row['tp']}" if row["tp"] > 1 else "")
        for p in row["predictions"]:
            cells.append([
                row["id"], where, drafts, f"{row['isl']:g}, {row['osl']:g}", shown_load(row),
                _PROTOCOLS[p["protocol"]].removeprefix("acceptance "), f"{p['acceptance_length']:.2f}",
                f"{row['measured']:.3f}", _ratio(p["speedup"]), signed(p["error"]), _ratio(p["null"]),
                signed(p["null_error"]), _whole(p["off_error"]), _whole(p["on_error"]),
            ])  # fmt: skip
    assumed = [f"- {text}: {named_ids(ids)}" for text, ids in assumptions(rows).items()]
    said = "\n\nFilled in, since the rows do not say:\n\n" + "\n".join(assumed) if assumed else ""
    return f"### {name}\n\n" + _table(columns, cells) + _set_by(rows) + said


def _set_by(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which of the rows are no test of specsim, and of what."""
    by: dict[str, list[str]] = {}
    for row in rows:
        if row["sets"]:
            by.setdefault(row["sets"], []).append(row["id"])
    return "".join(f"\n\nNo test of specsim, since they set its {what}: {named_ids(ids)}." for what, ids in by.items())


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"


def _wrong(published: Mapping[str, Any], misses: Sequence[Mapping[str, Any]]) -> str:
    """Predictions off by more than a tenth, by the reason that is known for their group."""
    left = [
        (row, p)
        for row in published["rows"]
        for p in row["predictions"]
        if p["protocol"] != "anchor" and p["error"] is not None and abs(p["error"]) > _MISS
    ]
    if not left:
        return ""
    lines = []
    for group in misses:
        mine = [(row, p) for row, p in left if _belongs(row, p, group)]
        if mine:
            left = [item for item in left if item not in mine]
            lines.append(f"- {_ranged(mine)}: {group['why']}")
    if left:
        lines.append(f"- {_ranged(left)}: not explained yet.")
    return (
        f"### What comes out wrong, and why\n\nPredictions that are off by more than {_MISS:.0%}, by group.\n\n"
        + "\n".join(lines)
    )


def _belongs(row: Mapping[str, Any], prediction: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    named = any(row["id"] == name or row["id"].startswith(f"{name}-") for name in group["rows"])
    protocols = group.get("protocols")
    methods = group.get("methods")
    return (
        named
        and (protocols is None or prediction["protocol"] in protocols)
        and (methods is None or row["method"] in methods)
    )


def _ranged(items: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    errors = [p["error"] for _, p in items]
    ids = list(dict.fromkeys(row["id"] for row, _ in items))
    shown = ", ".join(ids) if len(ids) <= 4 else f"{', '.join(ids[:3])} and {len(ids) - 3} more"
    low, high = min(errors), max(errors)
    span = signed(low) if low == high else f"{signed(low)} to {signed(high)}"
    return f"**{shown}** ({len(items)} predictions, {span})"


def _unpredictable(published: Mapping[str, Any]) -> str:
    if not published["unpredictable"]:
        return ""
    lines = []
    for reason, ids in by_reason(published["unpredictable"]).items():
        lines.append(f"- {named_ids(ids)}: {reason}")
    return "### Not predicted\n\n" + "\n".join(lines)
