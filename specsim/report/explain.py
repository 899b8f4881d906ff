"""The text of an explanation: where the time of a token, of a request and of the GPU goes, off and on side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specsim.explain.sentences import CAUSES
from specsim.report.text import Page, milliseconds, number, percent

__all__ = ["write_explanation"]

_REQUEST = {"queued": "waiting for the engine", "prompt": "prompt, to its first token", "room": "waiting to be read",
            "link": "waiting for the link", "transfer": "its cache is sent", "joining": "to its first token",
            "decode": "the rest", "total": "whole request"}  # fmt: skip


def write_explanation(page: Page, explanation: Mapping[str, Any]) -> None:
    """Sentences first, then two tables; at most 100 columns."""
    sides = [explanation[name] for name in ("off", "on") if name in explanation]
    page.heading("Why")
    for sentence in explanation["text"]:
        page.line(sentence)
    if any(side["token_total_s"] is None for side in sides):
        return
    page.heading("Where the time of an output token goes, ms")
    page.table(*_token_table(sides), wrapped=True)
    page.heading("Requests and GPUs")
    page.table(["", *(side["policy"] for side in sides)], _other_rows(sides))
    if len(sides) == 2:
        page.line("Same requests, same luck, one run each: for intervals ask specsim plan.")


def _token_table(sides: list[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    both = len(sides) == 2
    names = ["off", "on"] if both else [""]
    columns = ["", *(f"round {name}".strip() for name in names), *(f"token {name}".strip() for name in names)]
    columns += [*(["difference"] if both else []), ""]
    rows = []
    for cause in dict.fromkeys((*CAUSES, *(cause for side in sides for cause in side["round_s"]))):
        cells = [side[kind].get(cause) or 0.0 for kind in ("round_s", "token_s") for side in sides]
        if any(cells):
            rows.append([cause, *map(_ms, cells), *([_change(cells[2:])] if both else []), CAUSES.get(cause, "")])
    cells = [side[kind] for kind in ("round_total_s", "token_total_s") for side in sides]
    said = "tokens a round: " + " and ".join(f"{side['tokens_per_round']:.2f}" for side in sides)
    rows.append(["together", *map(_ms, cells), *([_change(cells[2:])] if both else []), said])
    return columns, rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _change(cells: list[float]) -> str:
    return f"{(cells[1] - cells[0]) * 1e3:+.3f}"


def _other_rows(sides: list[Mapping[str, Any]]) -> list[list[str]]:
    named = {name: text for name, text in _REQUEST.items() if name in sides[0]["request_s"]}
    if "transfer" in named:
        named["prompt"] = "prompt"
    rows = [[f"{text}, ms", *(milliseconds(side["request_s"][name]) for side in sides)] for name, text in named.items()]
    figures: list[tuple[str, str, Callable[[Any], str]]] = [
        ("GPU busy", "busy_share", percent),
        ("of it prompts", "prefill_share", percent),
        ("GPU time a token, ms", "busy_per_token_s", milliseconds),
        ("requests decoding in a step", "decoding_requests", number),
        ("tokens verified in a step", "verified_per_step", number),
        ("prompt tokens in a step", "prefill_tokens_per_step", number),
        ("preemptions", "preemptions", number),
    ]
    return rows + [[text, *(show(side[name]) for side in sides)] for text, name, show in figures]
