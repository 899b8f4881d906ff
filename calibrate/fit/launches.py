"""How passes were launched: what a profile says of it, and what a step pays that no captured graph holds.

Models: graphs of every measured size, so that a law without padding is fitted; an engine captures vLLM's sizes and pads
to them, which `specsim.latency` does when a profile names the largest. Leaves out: devices without graphs, where
nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.points import Point

__all__ = ["captured_terms", "launch_words"]

_LARGEST = 512
"""Tokens of the largest graph that vLLM captures by default on most GPUs (`specsim.serving`)."""


def _decoding(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.role == "target" and p.kind == "body" and not p.is_prefill and p.launch]


def launch_words(points: Sequence[Point]) -> str:
    """`graph`, `eager`, or how many passes of each decoded; empty where points do not tell."""
    launches = [point.launch for point in _decoding(points)]
    if not launches or len(set(launches)) == 1:
        return launches[0] if launches else ""
    return f"graph, {launches.count('eager')} of {len(launches)} decode passes eager"


def captured_terms(points: Sequence[Point]) -> dict[str, float]:
    """`captured_tokens_max` and `uncaptured_s` of a profile; empty where nothing ran as a graph.

    The first is the largest measured graph, at most vLLM's largest. The second is by how much the largest pass that was
    measured both ways took longer kernel by kernel; 0 without such a pass.
    """
    graphs = {point.parts: point for point in _decoding(points) if point.launch == "graph"}
    if not graphs:
        return {}
    pairs = [
        (point.tokens, point.seconds - graphs[point.parts].seconds)
        for point in points
        if point.kind == "eager" and point.role == "target" and point.parts in graphs
        and point.layers == graphs[point.parts].layers
    ]  # fmt: skip
    largest = max(point.tokens for point in graphs.values())
    return {
        "captured_tokens_max": min(_LARGEST, largest),
        "uncaptured_s": max(0.0, max(pairs)[1]) if pairs else 0.0,
    }
