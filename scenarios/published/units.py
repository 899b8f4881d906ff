"""What a published table says of its loads and units.

Models: requests in flight or arrivals per second; tokens per second of all or of one request, time per output token,
latency, ratios. Leaves out: energy, money, and the first token, which speculation does not shorten. Numbers: none.
"""

from __future__ import annotations

import re
from typing import Literal

from scenarios.lookup import one_line
from scenarios.published.words import plain_words
from specsim.errors import ScenarioError
from specsim.planner.implied import Metric

__all__ = ["LoadKind", "load_kind_words", "unit_words"]

LoadKind = Literal["closed", "rate"]


def load_kind_words(text: str) -> LoadKind:
    """`closed` for a number of requests kept in flight, `rate` for arrivals per second.

    Raises:
        ScenarioError: not understood.
    """
    plain = plain_words(text)
    if re.search(r"\b(qps|rps|rate|req s|reqs s|requests s|req per s|requests per second|arrival)\b", plain):
        return "rate"
    if re.search(r"\b(batch|bs|batch size|concurrency|concurrent|users?|streams?|clients?|in flight|max num seqs|"
                 r"parallel|slots?|sequences|requests)\b", plain):  # fmt: skip
        return "closed"
    raise ScenarioError(f"load_kind '{one_line(text)}' is not understood; write batch, concurrency or requests/s")


def unit_words(text: str) -> tuple[Metric, float | None, bool]:
    """(metric, factor to seconds or tokens/s, whether a value is per GPU) of a unit.

    Factor None: the unit says how the ratio is formed, but its values cannot be compared.

    Raises:
        ScenarioError: a unit that specsim does not predict.
    """
    plain = plain_words(text)
    if re.search(r"\bttft\b|\btime to first\b", plain):
        raise ScenarioError(f"unit '{one_line(text)}' is about the first token, which speculation does not shorten")
    if re.search(r"\b(w|watts?|joules?|usd)\b|\$", text.lower()):
        raise ScenarioError(f"unit '{one_line(text)}' is not predicted")
    per_gpu = "gpu" in plain.split()
    milli = 1e-3 if re.search(r"\bms\b", plain) else 1e-6 if re.search(r"\bus\b", plain) else 1.0
    if re.search(r"\b(tpot|itl|inter token|ms token|s token|per output token|per token)\b", plain):
        return "tpot", milli, False
    if re.search(r"\b(ratio|speedup|x)\b", plain):
        return "throughput", None, False
    if re.search(r"\b(user|per request|per stream)\b", plain) and re.search(r"\btok", plain):
        return "tpot", -1.0, False
    if re.search(r"\btok(en)?s?\b", plain):
        total = re.search(r"\b(total|input)\b", plain)
        return "throughput", None if total else 1.0, per_gpu
    if re.search(r"\b(latency|e2e|end to end|time|seconds|duration)\b", plain):
        return "latency", milli, False
    if re.search(r"\b(req|requests)\b", plain) or not plain:
        return "throughput", None, False
    raise ScenarioError(f"unit '{one_line(text)}' is not understood; write output tok/s, TPOT ms, or leave it blank")
