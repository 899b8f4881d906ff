"""What a change of one figure of the hardware, of a price or of the objective must do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
from fleets import answer, changed, question, traffic

from specsim.config import Slo
from specsim.planner import surface
from specsim.planner.costs import GpuCost, Ownership, fleet_cost
from specsim.report.whatif import whatif_text

BASE = changed("base")


def tpot(result: Mapping[str, Any], index: int) -> float:
    return float(result["options"][index]["proof"]["at"]["metrics"]["tpot_p50_s"]["mean"])


def test_at_low_load_bandwidth_alone_makes_a_gpu_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, strong = changed("wide", bandwidth=2.0), changed("strong", compute=2.0)
    result = answer([BASE, wide, strong], monkeypatch, rate_per_s=0.2, kinds=("off",))
    base, more_bandwidth, more_compute = (tpot(result, i) for i in range(3))
    assert 1.7 < base / more_bandwidth < 2.01, "an idle GPU reads weights"
    assert base / more_compute < 1.1, "and hardly computes"
    assert [row["gpus"] for row in result["options"]] == [1, 1, 1]


def turn(question_of: Any, context: int) -> float:
    found = surface.crossing(question_of, context, 3).batch
    return math.inf if found is None else found


def test_the_crossover_moves_as_the_roofline_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifying drafts computes more for the same bytes: more compute moves the turn to larger batches, more bandwidth
    to smaller ones, longer contexts (more bytes a request) to larger ones."""
    device = changed("weak", compute=0.15)
    here = turn(question(device, monkeypatch), 1000)
    assert turn(question(changed("stronger", compute=0.225), monkeypatch), 1000) > here
    assert turn(question(changed("weaker", compute=0.09), monkeypatch), 1000) < here
    assert turn(question(changed("wider", compute=0.15, bandwidth=1.5), monkeypatch), 1000) < here
    by_context = [turn(question(device, monkeypatch), context) for context in (100, 500, 1000, 2000)]
    assert by_context == sorted(by_context)
    assert by_context[0] < by_context[-1] < math.inf


def test_ranks_flip_when_prices_do(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = changed("fast", compute=2.0, bandwidth=2.0)
    gpus = {}
    for prices in ({"base": 1.0, "fast": 9.0}, {"base": 9.0, "fast": 1.0}):
        result = answer([BASE, fast], monkeypatch, prices=prices, kinds=("off", "static"))
        cheapest = result["options"][result["verdict"]["cheapest"]]
        assert cheapest["gpu"] == min(prices, key=lambda name: prices[name])
        gpus[cheapest["gpu"]] = [row["gpus"] for row in result["options"]]
    assert gpus["base"] == gpus["fast"], "prices decide ranks, not fleets"


def test_what_has_no_price_is_named_with_the_price_below_which_it_would_win(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = changed("fast", compute=2.0, bandwidth=2.0)
    prices: dict[str, float | None] = {"base": None, "fast": 3.0}
    verdict = answer([BASE, fast], monkeypatch, prices=prices, kinds=("off", "static"))["verdict"]
    (found,) = verdict["unpriced"]
    assert found["gpu"] == "base"
    limit = found["cheapest_below_usd_per_gpu_h"]
    assert "base has no price and is not ranked (--price gives one)" in verdict["text"][-1]
    assert f"below ${limit:,.2f} per GPU-hour" in verdict["text"][-1]
    for factor, wanted in ((0.99, "base"), (1.01, "fast")):
        result = answer([BASE, fast], monkeypatch, prices={**prices, "base": factor * limit}, kinds=("off", "static"))
        assert result["options"][result["verdict"]["cheapest"]]["gpu"] == wanted
        assert result["verdict"]["unpriced"] == []


def test_growth_names_the_policy_where_it_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    result = answer([BASE], monkeypatch, kinds=("off", "static"), growth=(2.0,))
    row = next(row for row in result["options"] if row["beyond"] is not None)
    (grown,) = row["beyond"]["growth"]
    grown["policy"] = row["policy"]
    section = lambda: whatif_text(result).split("Headroom and growth")[1].split("How sure")[0]  # noqa: E731
    assert ", k=7)" not in section()
    grown["policy"] = "k=7"
    assert f"{grown['gpus']} ($" in section()
    assert "/h, k=7)" in section()


def test_a_tighter_objective_never_needs_fewer_gpus_nor_more_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    fleets = []
    for tpot_s in (0.03, 0.05, 0.1, 0.3):
        result = answer([BASE], monkeypatch, slo=Slo(tpot_s=tpot_s), kinds=("off", "static"), rate_per_s=40.0)
        fleets.append([row["gpus"] or math.inf for row in result["options"]])
    for tighter, looser in itertools.pairwise(fleets):
        assert all(a >= b for a, b in zip(tighter, looser, strict=True))
    assert fleets[0] != fleets[-1]
    grown = answer([BASE], monkeypatch, kinds=("off",), growth=(2.0, 4.0))["options"][0]
    sizes = [grown["gpus"], *(row["gpus"] for row in grown["beyond"]["growth"])]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_the_number_of_gpus_is_proved_by_what_was_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    result = answer([BASE], monkeypatch, rate_per_s=40.0)
    assert any(row["replicas"] > 1 for row in result["options"])
    for row in result["options"]:
        at, below = row["proof"]["at"], row["proof"]["below"]
        assert at["replicas"] == row["replicas"]
        assert at["replications"] == (1 if row["policy_kind"] == "off" else 3)
        assert at["metrics"]["slo_share"]["mean"] >= 0.95
        if row["replicas"] > 1:
            assert below["replicas"] == row["replicas"] - 1
            assert below["metrics"]["slo_share"]["mean"] < 0.95
        assert row["spare"]["gpus"] == row["gpus"] + row["tp"]
    assert result == answer([BASE], monkeypatch, rate_per_s=40.0, jobs=2), "any number of processes"


def test_costs_are_sums_of_what_was_given() -> None:
    prices = GpuCost(None, purchase_usd=30_000.0, watts=1_000.0)
    cost = fleet_cost(
        4, prices, peak_tokens_per_s=2000.0, mean_tokens_per_s=1000.0,
        ownership=Ownership(3.0, usd_per_kwh=0.1, pue=1.5, hosting_usd_per_kw_month=100.0),
    )  # fmt: skip
    assert cost.owned_purchase_usd == 120_000
    assert cost.owned_power_usd == pytest.approx(4 * 1.5 * 3 * 8760 * 0.1)
    assert cost.owned_hosting_usd == pytest.approx(4 * 100 * 36)
    assert cost.owned_usd == pytest.approx(120_000 + 15_768 + 14_400)
    assert cost.owned_usd_per_million_output_tokens == pytest.approx(150_168 / (3 * 8760 * 3600 * 1000) * 1e6)
    assert cost.usd_per_h is None


def test_traffic_of_the_tests_is_what_it_says() -> None:
    assert traffic(20.0).rate_per_s == pytest.approx(20.0, rel=0.2)
