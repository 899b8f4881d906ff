"""When speculation is worth it over the time of a trace: its arrivals by hour against what was simulated at each load.

Models: each time as a steady load of its mean rate. Leaves out: bursts within it, and what a queue carries over from
the hour before; a log at `--window` or `--busiest` shows those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["BINS_SHOWN", "traffic_rows", "traffic_sentence"]

BINS_SHOWN = 6
"""A strip of fewer times says nothing that the mean load does not."""


def traffic_rows(result: Mapping[str, Any]) -> Iterator[tuple[float, float, str, str]]:
    """(start in seconds, requests/s, what speculation does, best policy nearby) of each time of the trace; none of a
    plan that was stored before its arrivals were.
    """
    verdicts = _verdicts(result)
    best = {row["load_per_s"]: row["policy"] for row in result["loads"]["best"]}
    arrivals = result["trace"].get("arrivals", {"rate_per_s": []})
    for i, rate in enumerate(arrivals["rate_per_s"]):
        nearest = min(best, key=lambda load: (abs(load - rate), load))
        yield arrivals["first_s"] + i * arrivals["bin_s"], rate, _state(rate, verdicts), best[nearest]


def _verdicts(result: Mapping[str, Any]) -> list[tuple[float, str]]:
    """(load, faster, slower or tie) of the policy that the answer compares, by rising load, searched loads included."""
    policy = result["recommendation"]["compared_policy"]
    found = {row["load_per_s"]: row["verdict"] for row in result["comparison"] if row["policy"] == policy}
    for row in result["search"]:
        e = row["e2e_speedup"]
        if row["policy"] == policy and e is not None and e["low"] is not None:
            found[row["load_per_s"]] = "faster" if e["low"] > 1 else "slower" if e["high"] < 1 else "tie"
    return sorted(found.items())


def _state(rate: float, verdicts: list[tuple[float, str]]) -> str:
    """What the simulated loads on both sides agree on; below the lowest, what holds there."""
    if rate > verdicts[-1][0]:
        return "not simulated"
    above = next(i for i, (load, _) in enumerate(verdicts) if load >= rate)
    around = {verdict for _, verdict in verdicts[max(above - 1, 0) : above + 1]}
    return (
        {"faster": "pays", "slower": "does not pay"}.get(around.pop(), "not sure") if len(around) == 1 else "not sure"
    )


def traffic_sentence(result: Mapping[str, Any]) -> str:
    """How much of the time, and of the requests, speculation pays."""
    rows = list(traffic_rows(result))
    time = Counter(state for _, _, state, _ in rows)
    total = sum(rate for _, rate, _, _ in rows)
    policy = result["recommendation"]["compared_policy"]
    parts = [
        f"{time[state] / len(rows):.0%} of the time ({sum(r for _, r, s, _ in rows if s == state) / total:.0%} of the "
        f"requests) {text}"
        for state, text in (
            ("pays", f"{policy} is faster than off"),
            ("does not pay", "it is slower"),
            ("not sure", "the simulated loads around it disagree or tie"),
            ("not simulated", "the load is higher than any simulated"),
        )
        if time[state]
    ]
    return "; ".join(parts) + "."
