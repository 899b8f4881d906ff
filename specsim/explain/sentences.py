"""What the figures of an explanation say, in sentences: does speculation pay, why, and what would have to change.

Every number in them is in the explanation; nothing is judged by deployment or method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["CAUSES", "sentences"]

Side = Mapping[str, Any]

CAUSES = {
    "weights": "reading weights and experts",
    "compute": "matrix products beyond weights",
    "kv": "attention over the cache",
    "fixed": "launches, norms, link latency",
    "collectives": "collectives, by tokens",
    "graph": "padding, or outside a graph",
    "draft": "the drafter's passes",
    "lookup": "search for drafts in the text",
    "host": "scheduling and sampling",
    "speculation": "checking drafts, machinery",
    "prefill": "prompts of others in the step",
    "stalled": "steps that serve others",
}
"""Causes in the order of a step, and what they are."""

_CURES = {
    "weights": "verified tokens touch more experts; fewer drafts, or a batch that touches them all anyway, would help",
    "compute": "verified tokens are not free at this batch; fewer drafts, or speculation off above a batch, would help",
    "kv": "verify reads the cache slower than decoding does; a kernel that shares and splits its reads would help",
    "collectives": "verified tokens cross the links too; fewer drafts or a smaller tp would help",
    "graph": "steps are padded or too large for a captured graph; capturing larger sizes would help",
    "draft": "fewer drafts or a cheaper drafter would help",
    "lookup": "a cheaper search on the host would help",
    "speculation": "less host time for speculation, or hiding it behind the device, would help",
    "prefill": "prompts are read in the same steps, by the drafter too; smaller chunks would help",
    "stalled": "requests stand still in steps that serve others; more cache, budget or smaller chunks would help",
}
"""Cause of the largest addition to a round -> what would help."""

_LITTLE = 0.02
"""Relative difference of a token's time below which it is called little: one run each has no interval."""
_CLEARLY = 1.15
"""Tokens a round over the break-even from which nothing needs to change."""
_NOTED = 0.1
"""Share from which queues and a changed batch are worth a sentence; prompts from twice of it."""


def sentences(off: Side | None, on: Side | None) -> list[str]:
    """The explanation of two runs of the same requests, or of the one that there is."""
    one = on or off
    if one is None or one["token_total_s"] is None:
        return ["No request was decoded past its first token in the measured time, so speculation has nothing to do."]
    if off is None or on is None or off["token_total_s"] is None:
        found = [f"An output token takes {_ms(one['token_total_s'])} ms.", _largest(one), *_prompts(one, None)]
        return [*found, *_queues(one, None), *_handed_over(one, None), *_preempted(one, None)]
    return [
        _verdict(off, on),
        _round(off, on),
        _change(off, on),
        *_batch(off, on),
        *_prompts(off, on),
        *_queues(off, on),
        *_handed_over(off, on),
        *_preempted(off, on),
    ]


def _verdict(off: Side, on: Side) -> str:
    ratio = off["token_total_s"] / on["token_total_s"]
    word = "changes little" if abs(ratio - 1) < _LITTLE else "helps" if ratio > 1 else "hurts"
    return (
        f"Speculation {word}: an output token takes {_ms(on['token_total_s'])} ms with {on['policy']} and "
        f"{_ms(off['token_total_s'])} ms with off, {ratio:.2f}x as fast."
    )


def _round(off: Side, on: Side) -> str:
    added = _additions(off, on)
    listed = ", ".join(f"{cause} {value * 1e3:+.2f}" for cause, value in added[:3])
    return (
        f"The target computes {on['verified_per_round']:.1f} tokens a request and round instead of "
        f"{off['verified_per_round']:.1f}. A round takes {_ms(on['round_total_s'])} ms instead of "
        f"{_ms(off['round_total_s'])}{f' ({listed})' if listed else ''} and gives a request "
        f"{on['tokens_per_round']:.2f} tokens instead of 1."
    )


def _additions(off: Side, on: Side) -> list[tuple[str, float]]:
    """Causes by which a round differs most, the largest first, those below 2 % of it left out."""
    causes = dict.fromkeys((*off["round_s"], *on["round_s"]))
    change = [(c, (on["round_s"].get(c) or 0.0) - (off["round_s"].get(c) or 0.0)) for c in causes]
    least = 0.02 * off["round_total_s"]
    return sorted((item for item in change if abs(item[1]) >= least), key=lambda item: -abs(item[1]))


def _change(off: Side, on: Side) -> str:
    """Where it would turn, and what would turn it."""
    needed = on["round_total_s"] / off["round_total_s"]
    said = f"It breaks even at {needed:.2f} tokens a round."
    if on["tokens_per_round"] >= _CLEARLY * needed:
        return f"{said} {_largest(on)}"
    grown = [(cause, value) for cause, value in _additions(off, on) if value > 0 and cause in _CURES]
    if not grown:
        return f"{said} {_largest(on)}"
    return f"{said} Most is added by {grown[0][0]}: {_CURES[grown[0][0]]}."


def _largest(side: Side) -> str:
    cause, value = max(side["round_s"].items(), key=lambda item: item[1] or 0.0)
    return f"Most of a round is {cause} ({value / side['round_total_s']:.0%}: {CAUSES.get(cause, cause)})."


def _batch(off: Side, on: Side) -> list[str]:
    before, after = off["decoding_requests"], on["decoding_requests"]
    if abs(after / before - 1) < _NOTED:
        return []
    why = "since requests leave sooner" if after < before else "since requests stay longer or more are admitted"
    return [f"{after:.1f} requests decode in a step instead of {before:.1f}, {why}."]


def _prompts(one: Side, other: Side | None) -> list[str]:
    shares = [side["prefill_share"] or 0.0 for side in (one, other) if side is not None]
    if max(shares) < 2 * _NOTED:
        return []
    if other is None:
        return [f"Prompts take {shares[0]:.0%} of the GPU's busy time."]
    most = f", so {1 / shares[0]:.1f}x the requests would fit at most" if shares[0] > 0.5 else ""
    return [
        f"Prompts take {shares[0]:.0%} of the GPU's busy time with off and {shares[1]:.0%} with {other['policy']}; "
        f"speculation does not shorten that part{most}."
    ]


def _queues(one: Side, other: Side | None) -> list[str]:
    waits = []
    for side in (one, other):
        request = side["request_s"] if side is not None else {}
        if not request or request["total"] is None:
            continue
        first = _to_first_token(request)
        share = request["queued"] / first if first > 0 else 0.0
        waits.append(
            (request["queued"], share, request["queued"] / request["total"] if request["total"] else 0.0, side)
        )
    if not waits or max(of_all for _, _, of_all, _ in waits) < _NOTED:
        return []
    texts = [f"{_time(wait)} with {side['policy']} ({share:.0%} of TTFT)" for wait, share, _, side in waits if side]
    return [f"Requests wait for the engine: {' and '.join(texts)}."]


def _to_first_token(request: Mapping[str, float]) -> float:
    """Seconds of a request's parts before its first token."""
    return math.fsum(value for name, value in request.items() if name not in ("decode", "total"))


def _handed_over(one: Side, other: Side | None) -> list[str]:
    """Where prefill and decode are apart: what lies between a prompt and its first token."""
    texts = []
    for side in (one, other):
        if side is None or side["request_s"]["total"] is None or "transfer" not in side["request_s"]:
            continue
        request = side["request_s"]
        parts = {"room on the decode side": "room", "the link": "link", "the cache to be sent": "transfer",
                 "its first step there": "joining"}  # fmt: skip
        whole = math.fsum(request[name] for name in parts.values())
        share = whole / _to_first_token(request) if whole else 0.0
        most = max(parts, key=lambda said: request[parts[said]])
        texts.append(f"{_time(whole)} with {side['policy']} ({share:.0%} of TTFT, most of it for {most})")
    return [f"A prompt that is done waits {' and '.join(texts)}."] if texts else []


def _preempted(one: Side, other: Side | None) -> list[str]:
    counts = [(side["preemptions"], side["policy"]) for side in (one, other) if side is not None]
    if not any(count for count, _ in counts):
        return []
    return [f"The cache ran out {' and '.join(f'{n:,} times with {policy}' for n, policy in counts)}."]


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{_ms(seconds)} ms"


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
