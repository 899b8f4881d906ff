"""The analytic profile against published speedups that it was not tuned to row by row: sign, size, where it turns."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from scenarios.acceptance import default_acceptance
from scenarios.hardware import gpu
from scenarios.models import model
from specsim.analytic import analytic_profile
from specsim.latency import StepCost
from specsim.trees import Tree, cut, grown_tree

ROWS = json.loads((Path(__file__).parent / "golden_sdb1.json").read_text(encoding="utf-8"))["rows"]


def cost(method: str, tree: Tree | None = None) -> StepCost:
    draft = model("eagle-llama-3.1-8b") if method == "eagle" else None
    profile = analytic_profile(model("llama-3.1-8b"), gpu("H100 SXM"), draft=draft, method=method)
    return StepCost(profile, () if tree is None else cut(tree))


def predicted(row: dict, off: StepCost, on: StepCost) -> float:
    """Speedup of steady decoding in the middle of the outputs."""
    context = row["isl"] + row["osl"] / 2
    drafts = None
    if row["method"] == "ngram":
        drafts = default_acceptance("ngram", "llama-3.1-8b", row["task"])[0].expected_drafts(row["k"])
    plain = off.decode_step_s(row["batch"], context)
    return (
        row["acceptance_length"] * plain / on.decode_step_s(row["batch"], context, row["k"], drafts_per_request=drafts)
    )


@pytest.mark.parametrize("method", ["eagle", "ngram"])
def test_speedups_follow_the_published_rows(method: str) -> None:
    off, on = cost("none"), cost(method)
    rows = [row for row in ROWS if row["method"] == method]
    assert len(rows) == 8
    ratios = {row["id"]: (predicted(row, off, on), row["speedup"]) for row in rows}
    assert all((mine > 1) == (theirs > 1) for mine, theirs in ratios.values()), ratios
    errors = [abs(mine / theirs - 1) for mine, theirs in ratios.values()]
    assert statistics.median(errors) < 0.15, ratios
    assert max(errors) < 0.25, ratios


def test_plain_decoding_is_near_the_published_linear_fit() -> None:
    off = cost("none")
    for batch in (1, 16, 64, 128, 256):
        fit = 3.926e-8 * batch * 300 + 2.101e-5 * batch + 5.886e-3 + 1.207e-3
        assert off.decode_step_s(batch, 300) == pytest.approx(fit, rel=0.10)


def test_eagle_round_is_near_the_published_linear_fit() -> None:
    off, on = cost("none"), cost("eagle")
    for batch in (1, 16, 64, 128):
        kv, drafts = batch * 300, 3 * batch
        fit = 3.926e-8 * kv + 2.101e-5 * (batch + drafts) + 5.886e-3 + 1.207e-3
        fit += 2.378e-9 * kv + 8.414e-7 * drafts + 2.135e-3
        assert on.decode_step_s(batch, 300, 3) == pytest.approx(fit, rel=0.12)
        assert on.decode_step_s(batch, 300, 3) > off.decode_step_s(batch, 300)


def turning_batch(length: float, context: float, depth: int, tree: Tree | None = None) -> float:
    """First batch at which speculation loses; infinite when it gains at every batch that an engine runs."""
    off, on = cost("none"), cost("eagle", tree)
    loses = (
        batch
        for batch in range(1, 1025)
        if length * off.decode_step_s(batch, context) < on.decode_step_s(batch, context, depth)
    )
    return next(loses, math.inf)


def test_a_tree_turns_early_and_a_chain_late() -> None:
    assert 20 <= turning_batch(3.2, 300, 4, grown_tree((0.65,), nodes=21, topk=4, depth=4)[0]) <= 40
    assert turning_batch(2.388, 178, 3) > 100
    assert turning_batch(2.266, 719, 3) > 100


def test_published_absolute_times_within_the_stated_band() -> None:
    # TPOT of plain decoding, ms: vLLM PR 20780, bf16, batch 1
    assert cost("none").decode_step_s(1, 300) * 1e3 == pytest.approx(7.07, rel=0.25)
    # EAGLE step times, ms: acceptance length x TPOT of vLLM PR 20780, k = 2..7, MT-Bench, batch 1
    for k, step_ms in zip(range(2, 8), (9.18, 9.82, 10.7, 11.45, 12.1, 12.84), strict=True):
        assert cost("eagle").decode_step_s(1, 300, k) * 1e3 == pytest.approx(step_ms, rel=0.25)
    # Qwen3 single streams of AngelSlim's table, tokens/s, dense bf16, hardware not stated (consistent with one H100)
    for name, rate in (
        ("qwen3-1.7b", 382),
        ("qwen3-4b", 233),
        ("qwen3-8b", 152),
        ("qwen3-14b", 93),
        ("qwen3-32b", 43.3),
    ):
        step = StepCost(analytic_profile(model(name), gpu("H100 SXM"))).decode_step_s(1, 300)
        assert 1 / step == pytest.approx(rate, rel=0.25), name
