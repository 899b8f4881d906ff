"""What a what-if concludes: what to buy, and whether speculation lets one buy fewer or cheaper GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specsim.planner.whatif_rank import Ranking

__all__ = ["verdict_part"]

_BASIS = {
    "owned_usd_per_h": "by purchase, power and hosting",
    "usd_per_h": "by the price of a GPU-hour",
    "gpus": "by the number of GPUs, since no price is known",
}


def verdict_part(result: Mapping[str, Any], order: Ranking) -> dict[str, Any]:
    """`cheapest`, `cheapest_off`, `cheapest_speculative` (indices of options or null), `by_gpu`, `unpriced`, `text`."""
    best, off, on = (order.cheapest(speculative=which) for which in (None, False, True))
    by_gpu = []
    for gpu in dict.fromkeys(row["gpu"] for row in result["options"]):
        without = order.cheapest(speculative=False, gpu=gpu)
        with_it = order.cheapest(speculative=True, gpu=gpu)
        by_gpu.append({
            "gpu": gpu,
            "off": without,
            "speculative": with_it,
            "gpus_saved": None if without is None or with_it is None
            else order.rows[without]["gpus"] - order.rows[with_it]["gpus"],
        })  # fmt: skip
    return {
        "cheapest": best,
        "cheapest_off": off,
        "cheapest_speculative": on,
        "by_gpu": by_gpu,
        "unpriced": (unpriced := _unpriced(order, best)),
        "text": [*_sentences(result, order, best, off, on), *_unpriced_text(order, unpriced)],
    }


def _sentences(
    result: Mapping[str, Any], order: Ranking, best: int | None, off: int | None, on: int | None
) -> list[str]:
    if best is None:
        return ["None of these options holds the objective; the table says what they reach."]
    text = [f"Cheapest, {_BASIS[order.basis]}: {_fleet(order, best)}."]
    tried = {row["policy_kind"] != "off" for row in order.rows}
    if off is None and on is not None:
        text.append(
            "Without speculation no option holds the objective, with any number of GPUs that was tried."
            if False in tried
            else "Without speculation was not tried (--policies leaves off out)."
        )
    elif on is None:
        text.append(
            "With speculation no option holds the objective."
            if True in tried
            else "With speculation was not tried (--policies has off alone)."
        )
    elif off is not None:
        text.append(_compared(order, off, on))
    text += _by_gpu(order, best, off, on)
    if any(order.rows[i]["close"] for i in {best, off, on} - {None} if i is not None):
        text.append(
            "That is close: the interval of the share within the objective holds what is asked for, at the number of "
            "replicas shown or with one less."
        )
    if len(order.candidates) > 1 and order.basis == "usd_per_h":
        text += _flips(result, order, best)
    return text


def _by_gpu(order: Ranking, *said: int | None) -> list[str]:
    """What speculation saves of each GPU, where the first sentences do not say so."""
    found = []
    for gpu in dict.fromkeys(row["gpu"] for row in order.rows):
        off, on = (order.cheapest(speculative=which, gpu=gpu) for which in (False, True))
        if off is None or on is None or {off, on} <= set(said):
            continue
        without, with_it = order.rows[off]["gpus"], order.rows[on]["gpus"]
        if with_it < without:
            found.append(f"{with_it} instead of {without} {gpu}")
    return [f"On one GPU speculation needs fewer: {'; '.join(found)}."] if found else []


def _fleet(order: Ranking, index: int) -> str:
    cost = order.cost(index)
    price = "" if order.basis == "gpus" else " for $%s/h" % (f"{cost:,.2f}" if cost != float("inf") else "?")
    return _fleet_of(order, index) + price


def _fleet_of(order: Ranking, index: int) -> str:
    """A fleet in words, without what it costs."""
    row = order.rows[index]
    dtype = f" {row['weight_dtype']}" if row["weight_dtype"] else ""
    how = "without speculation" if row["policy_kind"] == "off" else f"with {row['policy']}"
    return f"{row['gpus']} {row['gpu']} ({row['replicas']} x tp {row['tp']}{dtype}) {how}"


def _compared(order: Ranking, off: int, on: int) -> str:
    """Whether speculation lets one buy fewer or cheaper GPUs."""
    without, with_it = order.rows[off], order.rows[on]
    fewer = without["gpus"] - with_it["gpus"]
    saved = order.cost(off) - order.cost(on)
    same = (without["gpu"], without["tp"], without["weight_dtype"]) == (
        with_it["gpu"], with_it["tp"], with_it["weight_dtype"])  # fmt: skip
    money = "" if order.basis == "gpus" or not math.isfinite(saved) else (
        f", ${abs(saved):,.2f} an hour {'less' if saved > 0 else 'more'}"
    )  # fmt: skip
    if saved > 0 and fewer > 0 and same:
        return f"Speculation lets you buy fewer GPUs: {with_it['gpus']} instead of {without['gpus']}{money}."
    if saved > 0:
        return f"Speculation lets you buy cheaper: {_fleet(order, on)} instead of {_fleet(order, off)}{money}."
    if saved == 0:
        tpot = [order.rows[i]["proof"]["at"]["metrics"]["tpot_p95_s"]["mean"] for i in (off, on)]
        faster = "" if None in tpot else f"; TPOT p95 is {tpot[1] * 1e3:.3g} ms with it and {tpot[0] * 1e3:.3g} without"
        return f"Speculation buys no fewer and no cheaper GPUs: {_fleet(order, on)} costs the same{faster}."
    return f"Speculation does not pay for itself: without it {_fleet(order, off)}{money.replace('more', 'less')}."


def _flips(result: Mapping[str, Any], order: Ranking, best: int) -> list[str]:
    """How far the price of the winner may rise before the next GPU is cheaper."""
    row = order.rows[best]
    others = [i for i in order.ordered() if order.rows[i]["gpu"] != row["gpu"] and order.cost(i) < float("inf")]
    if not others or order.cost(best) in (0.0, float("inf")):
        return []
    limit = order.cost(others[0]) / row["gpus"]
    return [f"{row['gpu']} stays cheapest up to ${limit:,.2f} a GPU-hour; above that it is {_fleet(order, others[0])}."]


def _unpriced(order: Ranking, best: int | None) -> list[dict[str, Any]]:
    """GPUs that hold the objective but have no price where others have: their smallest fleet, and below which price of
    a GPU-hour it would be the cheapest."""
    if best is None or order.basis == "gpus":
        return []
    found = []
    for gpu in dict.fromkeys(order.rows[i]["gpu"] for i in order.candidates):
        own = order.ordered(gpu=gpu)[0]
        if not math.isfinite(order.cost(own)):
            limit = order.cost(best) / order.rows[own]["gpus"]
            found.append({"gpu": gpu, "option": own, "cheapest_below_usd_per_gpu_h": limit})
    return found


def _unpriced_text(order: Ranking, unpriced: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for it in unpriced:
        gpu, limit = it["gpu"], it["cheapest_below_usd_per_gpu_h"]
        found.append(
            f"{gpu} has no price and is not ranked (--price gives one); {_fleet_of(order, it['option'])} holds the "
            f"objective, and would be cheapest below ${limit:,.2f} per GPU-hour."
        )
    return found
