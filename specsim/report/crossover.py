"""The text of `specsim crossover`, from its JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specsim.report.text import Page, number, plus_minus

__all__ = ["crossover_text"]

_BAR = 16
_HALVES = 1.0
"""Doublings to each side of 1 that a bar shows."""


def crossover_text(result: Mapping[str, Any], *, color: bool = False) -> str:
    """Table by concurrency, two sentences, where the numbers are from; at most 100 columns."""
    page = Page(color=color)
    settings, deployment = result["settings"], result["deployment"]
    names = deployment["names"]
    nodes = settings["tree_nodes"]
    drafts = f"k={settings['k']}" if nodes is None else f"tree of {nodes} nodes, depth {settings['k']}"
    page.heading("Question")
    page.facts(
        [
            ("deployment", f"{names['target']} on {names['gpu']}, tp {deployment['tp']}, one replica"),
            ("speculation", f"{result['speculation']['method']}, {drafts}, drafter {names['draft']}"),
            ("load", f"prompt {settings['isl']}, output {settings['osl']} tokens, closed loop"),
            ("acceptance", _acceptance(result["acceptance"])),
            ("profile", _profile(result["profile"])),
            *((("assumed" if i == 0 else ""), text) for i, text in enumerate(result["assumed"])),
        ]
    )
    page.heading("Speculation off and on by requests in flight")
    page.table(
        ["in flight", "off tok/s", "on tok/s", "off ms", "on ms", "speed-up", "95 %", "verdict", ""],
        [_row(point) for point in result["points"]],
        left=0,
    )
    page.line(
        f"tok/s: output of all requests; ms: time per output token (TPOT). Intervals over {settings['seeds']} paired "
        f"seeds: same requests, same luck on both sides."
    )
    page.heading("Answer")
    for sentence in result["text"]:
        page.line(sentence)
    for warning in result["warnings"]:
        page.line(f"warning: {warning}")
    return page.text()


def _acceptance(acceptance: Mapping[str, Any]) -> str:
    error = plus_minus(acceptance["relative_error"])
    return f"{acceptance['expected_length']:.2f} tokens a round ({error}); {acceptance['source']}"


def _profile(profile: Mapping[str, Any]) -> str:
    off, on = profile["off"], profile["on"]
    kinds = off["kind"] if off["kind"] == on["kind"] else f"{off['kind']} (off) and {on['kind']} (on)"
    return f"{kinds}: step times {plus_minus(on['relative_error'])}, speed-ups {plus_minus(profile['speedup_error'])}"


def _row(point: Mapping[str, Any]) -> list[str]:
    low, high = point["interval"]["low"], point["interval"]["high"]
    around = "-" if low is None else f"{low:.3f}-{high:.3f}"
    return [
        str(point["concurrency"]),
        number(point["throughput_off"]),
        number(point["throughput_on"]),
        number(point["tpot_off_ms"]),
        number(point["tpot_on_ms"]),
        "-" if point["speedup"] is None else f"{point['speedup']:.3f}",
        around,
        point["verdict"],
        _bar(point["speedup"]),
    ]


def _bar(speedup: float | None) -> str:
    """A bar to the right of the middle line when speculation pays, to the left when it does not."""
    half = _BAR // 2
    if speedup is None or not speedup > 0:
        return " " * half + "|" + " " * half
    length = min(half, round(abs(math.log2(speedup)) / _HALVES * half))
    if speedup >= 1:
        return " " * half + "|" + "#" * length + " " * (half - length)
    return " " * (half - length) + "#" * length + "|" + " " * half
