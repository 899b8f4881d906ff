"""Shapes that are known of speculative decoding come out of catalogue deployments, with no case made for any of them.

By batch on the cost surface where a paper measures steady decoding, by simulation where arrivals and prompts matter.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scenarios.resolve import resolve
from specsim.cli import cli
from specsim.config import Deployment, PolicySpec, Slo, Speculation
from specsim.explain.explanation import explain
from specsim.latency import StepWork
from specsim.planner.concurrency import CrossoverSettings, run_point, steady_trace
from specsim.planner.question import Question
from specsim.planner.single import SingleRun
from specsim.planner.surface import batch_limit, crossing, speedup
from specsim.traces.recipe import LengthSpec

HALF = {"acceptance": (0.6,) * 8}
"""Acceptance alike for every deployment, where only the deployment is compared."""


def question(
    method: str = "eagle", *, k: int = 3, speculation: dict[str, Any] | None = None, **changes: Any
) -> Question:
    """A catalogue deployment with room for large batches; Llama-3.1-8B on one H100 unless said otherwise."""
    roomy = {"max_num_seqs": 1024, "max_num_batched_tokens": 16384, "max_model_len": 8192}
    return resolve(
        Deployment(**{**roomy, **changes}), Speculation(method, num_spec_tokens=(k,), **(speculation or {})), Slo()
    )


def gains(asked: Question, batches: Sequence[int], context: int, k: int = 3) -> list[float]:
    """Speed-up by batch; every batch must fit."""
    assert batches[-1] <= batch_limit(asked, context)
    return [speedup(asked, batch, context, k) for batch in batches]


def turn(asked: Question, context: int = 300, k: int = 3) -> int:
    """Batch from which speculation no longer pays; it does before and turns once."""
    found = crossing(asked, context, k)
    assert found.batch is not None and found.speedup_at_1 > 1 > found.speedup_at_limit
    return found.batch


def rises(values: Sequence[float], *, by: float = 0.0) -> bool:
    return all(after > before * (1 + by) for before, after in itertools.pairwise(values))


def falls(values: Sequence[float], *, by: float = 0.0) -> bool:
    return rises(values[::-1], by=by)


# Drafts and acceptance


def test_more_drafts_turn_earlier() -> None:
    turns = [turn(question(k=k, speculation=HALF), k=k) for k in (2, 3, 4, 6, 8)]
    assert falls(turns, by=0.1)


def test_lower_acceptance_turns_earlier() -> None:
    turns = [turn(question(speculation={"acceptance": (a,) * 3})) for a in (0.3, 0.4, 0.5, 0.6, 0.7)]
    assert rises(turns, by=0.2)


def test_a_tree_turns_before_a_chain() -> None:
    """More of a tree is accepted, and it gains more at batch 1; but all of its nodes are computed for every request."""

    def crossover(*flags: str) -> dict[str, Any]:
        words = (
            "crossover --target llama-3.1-8b --gpu h100-sxm --method eagle --k 4 --isl 200 --osl 100 --seeds 3 --json"
        )
        done = CliRunner().invoke(cli, [*words.split(), "--concurrency", "1,56", *flags])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    chain = crossover("--acceptance-length", "2.4")
    tree = crossover("--tree-nodes", "24", "--acceptance-length", "3.2")
    first, last = ((c["speedup"], t["speedup"]) for c, t in zip(chain["points"], tree["points"], strict=True))
    assert first[1] > first[0] > 1
    assert last[0] > 1 > last[1]
    assert tree["surface_crossover_batch"] < 0.5 * (chain["surface_crossover_batch"] or 10_000)


# Contexts and kernels


LONG = {"tp": 8, "max_model_len": 131072}


@pytest.mark.parametrize(("context", "most"), [(32_000, 64), (100_000, 32)])
def test_long_contexts_gain_more_as_the_batch_grows(context: int, most: int) -> None:
    """Where the kernel shares its reads: the cache, not compute, fills the step, and verify reads it once.

    MagicDec (arXiv 2408.11049): at 32K to 100K speed-ups rise with the batch, where those of short prompts fall.
    """
    asked = question(**LONG)
    batches = [1, 4, 16, most]
    assert rises(gains(asked, batches, context))
    assert falls(gains(asked, [16, 64, 256], 500), by=0.02)


MAGICDEC = json.loads((Path(__file__).parent / "golden_magicdec.json").read_text(encoding="utf-8"))


def magicdec(row: dict[str, Any]) -> float:
    """Speed-up on the surface of one published row; the paper's kernels split the cache on every GPU."""
    a = MAGICDEC["acceptance"][str(row["context"])]
    asked = question("magicdec", k=row["k"], target=row["target"], gpu=row["gpu"], tp=8, max_model_len=None,
                     speculation={"acceptance": (a,) * row["k"]})  # fmt: skip
    asked = replace(asked, on=replace(asked.on, profile=replace(asked.on.profile, verify_unsplit_requests=0.0)))
    return speedup(asked, row["batch"], row["context"], row["k"])


def test_drafting_over_a_sparse_cache_rises_with_the_batch_as_published() -> None:
    """Its level is too high throughout: the paper's code pays more for three passes of an 8B model over eight GPUs."""
    series: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in MAGICDEC["rows"]:
        key = (row["target"], row["gpu"], row["context"])
        series.setdefault(key, []).append((magicdec(row), row["speedup"]))
    for found in series.values():
        mine, theirs = zip(*found, strict=True)
        assert rises(mine, by=0.05) and rises(theirs)
        assert mine[-1] / mine[0] == pytest.approx(theirs[-1] / theirs[0], rel=0.15)
        assert all(1 < m / t < 1.5 for m, t in found)


def test_drafting_over_a_sparse_cache_gains_little_where_contexts_are_short() -> None:
    asked = question("magicdec", tp=8)
    assert max(gains(asked, [1, 16, 64, 256], 500)) < 1.1


def test_drafting_over_a_sparse_cache_gains_in_simulated_serving_too() -> None:
    asked = question("magicdec", tp=8, max_model_len=131072, speculation={"acceptance_length": 3.0})
    settings = CrossoverSettings((4, 32), LengthSpec(32_000), LengthSpec(1500), 3, seeds=3)
    few, many = (run_point(asked, settings, concurrency).speedup.mean for concurrency in (4, 32))
    assert many > 1.15 * few


@pytest.mark.parametrize(("context", "most"), [(32_000, 64), (100_000, 32)])
def test_long_contexts_lose_as_the_batch_grows_where_every_query_reads_the_cache(context: int, most: int) -> None:
    shared = question(**LONG)
    sides = {
        name: replace(side, profile=replace(side.profile, verify_reads_kv_once=False))
        for name, side in (("off", shared.off), ("on", shared.on))
    }
    asked = replace(shared, **sides)
    found = gains(asked, [1, 4, 16, most], context)
    assert falls(found, by=0.05)
    assert found[-1] < 0.75 < 1 < found[0]


def test_kernels_that_do_not_split_the_cache_lose_at_long_contexts_and_small_batches() -> None:
    """The corner opposite to the compute-bound one: FlashAttention 2 on A100.

    flash-attention issues 176 and 190 have 7 to 23 times at 31K for one request.
    """
    older, newer = question(gpu="a100-80-sxm", **LONG), question(gpu="h100-sxm", **LONG)
    found = gains(older, [1, 4, 16, 64], 32_000)
    assert rises(found) and found[0] < 0.5 and found[-1] > 1
    assert gains(older, [1], 200)[0] > 1.2, "short contexts do not show it"
    assert min(gains(newer, [1, 4, 16, 64], 32_000)) > 1.3


# Mixtures of experts


def target_s(asked: Question, batch: int, drafts: int, context: int = 1000) -> float:
    """Seconds of the target's pass alone."""
    parts = asked.off.cost.parts(
        StepWork(decode_requests=batch, draft_tokens=batch * drafts, kv_tokens=context * batch)
    )
    return sum(parts[cause] for cause in ("weights", "compute", "kv", "fixed", "collectives"))


@pytest.mark.parametrize(
    ("deployment", "method", "middle"),
    [
        ({"target": "mixtral-8x7b", "tp": 2}, "ngram", 32),
        ({"target": "qwen3-30b-a3b"}, "eagle3", 64),
    ],
)
def test_verify_of_experts_costs_much_alone_little_in_the_middle_and_much_again(
    deployment: dict[str, Any], method: str, middle: int
) -> None:
    """At batch 1 four tokens touch other experts than one does; later all are read anyway; at last compute counts."""
    asked = question(method, **deployment)
    alone, between, top = (target_s(asked, batch, 3) / target_s(asked, batch, 0) for batch in (1, middle, 1024))
    assert alone > 1.5
    assert between < 1.1
    assert top > 1.3
    dense = question()
    assert target_s(dense, 1, 3) / target_s(dense, 1, 0) < 1.05, "the guard: a dense model pays nothing at batch 1"


def test_the_gain_of_experts_dips_recovers_and_falls() -> None:
    """DeepSeek-V3 with its own MTP layer on eight H200."""
    asked = question("mtp", target="deepseek-v3", gpu="h200-sxm", tp=8)
    alone, dip, best, end = gains(asked, [1, 8, 96, 512], 1000)
    assert dip < 0.9 * alone
    assert best > 1.15 * dip
    assert end < 0.85 * best
    assert falls(gains(asked, [96, 192, 384], 1000), by=0.03)


# Prompts


@pytest.mark.parametrize(("output", "low", "high"), [(300, 1.15, 1.45), (16, 0.93, 1.03), (4, 0.93, 1.03)])
def test_what_prompts_fill_gains_nothing(output: int, low: float, high: float) -> None:
    """Prompts of 8000 tokens: the GPU reads prompts nearly all the time, the drafter too, and only the rest shrinks."""
    asked = question(max_num_seqs=256, max_model_len=16384, max_num_batched_tokens=8192)
    point = run_point(asked, CrossoverSettings((16,), LengthSpec(8000), LengthSpec(output), 3, seeds=3), 16)
    assert low < point.speedup.mean < high


def test_what_prompts_fill_is_explained_by_prompts() -> None:
    """Of the GPU's time and of a request's, with speculation and without."""
    asked = question(max_num_seqs=256, max_model_len=16384, max_num_batched_tokens=8192)
    trace = steady_trace(LengthSpec(8000), LengthSpec(8), 4, 60, seed=0)
    found = explain(SingleRun(asked, trace, PolicySpec("static", 3), concurrency=4))[1]
    for side in (found["off"], found["on"]):
        assert side["prefill_share"] > 0.8
        request = side["request_s"]
        others = (side["token_s"]["prefill"] + side["token_s"]["stalled"]) / side["token_total_s"]
        assert request["prompt"] + others * request["decode"] > 0.75 * request["total"], "its own prompt and others'"
    assert found["on"]["busy_s"] == pytest.approx(found["off"]["busy_s"], rel=0.06)
    assert any(sentence.startswith("Prompts take") for sentence in found["text"])


def test_short_prompts_gain_at_the_same_concurrency() -> None:
    """The guard of the test above."""
    point = run_point(question(), CrossoverSettings((16,), LengthSpec(500), LengthSpec(300), 3, seeds=3), 16)
    assert point.speedup.mean > 1.4


# Hardware


def test_the_turn_follows_compute_over_bandwidth() -> None:
    """More bandwidth with the same compute turns earlier (H200 before H100), more compute for it later."""
    names = ["H20", "A100-80 SXM", "H200 SXM", "H100 SXM", "H100 PCIe"]
    ratios, turns = [], []
    for name in names:
        asked = question(gpu=name, speculation=HALF)
        cost = asked.off.profile.target
        ratios.append(cost.weights_s / cost.token_s)
        turns.append(turn(asked))
    assert rises(ratios), "the guard: tokens that compute as long as reading the weights takes"
    assert rises(turns, by=0.1)


def test_weight_only_quantisation_turns_earlier_and_gains_less() -> None:
    """Fewer bytes to read, the same compute: the free room above one token shrinks."""
    for gpu, dtypes in (("h100-sxm", ("bf16", "int4")), ("a100-80-sxm", ("bf16", "fp8", "int4"))):
        asked = [question(gpu=gpu, weight_dtype=dtype, speculation=HALF) for dtype in dtypes]
        assert falls([turn(each) for each in asked], by=0.3)
        assert falls([gains(each, [1], 300)[0] for each in asked], by=0.05)


def test_fp8_that_the_gpu_multiplies_gains_less_and_turns_near_the_same_batch() -> None:
    """Bytes and compute shrink together; what does not (drafter, host, cache) weighs more on both sides."""
    full, half = (question(weight_dtype=dtype, speculation=HALF) for dtype in ("bf16", "fp8"))
    assert gains(half, [1], 300)[0] < 0.95 * gains(full, [1], 300)[0]
    assert 0.6 < turn(half) / turn(full) < 1.6


def test_tensor_parallelism_makes_a_token_dearer() -> None:
    """Collectives grow with every verified token and are not divided by the GPUs."""
    asked = [
        question("eagle3", target="llama-3.3-70b", weight_dtype="fp8", tp=tp, speculation=HALF) for tp in (2, 4, 8)
    ]
    one = question(weight_dtype="fp8", speculation=HALF)
    assert one.off.profile.target.collective_token_s == 0
    costs = [each.off.profile.target for each in asked]
    assert rises([cost.collective_token_s for cost in costs], by=0.1)
    assert rises([cost.collective_token_s / cost.token_s for cost in costs], by=1.0)
    work = StepWork(decode_requests=64, draft_tokens=192, kv_tokens=64 * 300, next_num_spec_tokens=3, machinery=True)
    shares = []
    for each in asked:
        parts = each.on.cost.parts(work)
        shares.append(parts["collectives"] / sum(parts.values()))
    assert rises(shares, by=0.3)
    assert falls([gains(each, [1], 300)[0] for each in asked])
    assert falls([gains(each, [64], 300)[0] for each in asked])
