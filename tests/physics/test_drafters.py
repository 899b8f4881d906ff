"""Every registered drafter against the laws: cost, memory, names. Drafters are taken from the registry."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.acceptance import default_acceptance
from scenarios.hardware import gpu
from scenarios.models import default_drafter, load_models, model
from scenarios.resolve import resolve
from specsim.analytic import analytic_profile, kv_bytes
from specsim.config import Deployment, Slo, Speculation
from specsim.drafters import all_drafters, drafter, find_drafter, method_names
from specsim.errors import CapacityError, CatalogueError, InputError, ProfileError, ScenarioError
from specsim.latency import StepCost, StepWork
from specsim.memory import DraftMemory, plan_memory
from specsim.passes import CompiledPass
from specsim.planner.question import Question
from specsim.shapes import ModelShape

METHODS = pytest.mark.parametrize("method", method_names())
DEEPEST = 6


@cache
def question(method: str) -> Question:
    """A target that has everything: plain attention for most, an MTP layer and experts for mtp."""
    place = Deployment("glm-4.5-air", "h200-sxm", tp=4) if method == "mtp" else Deployment()
    options = {"heads": DEEPEST} if method == "medusa" else {}
    return resolve(place, Speculation(method, num_spec_tokens=(DEEPEST,), options=options), Slo())


@METHODS
@settings(max_examples=60, deadline=None)
@given(batch=st.integers(1, 300), context=st.integers(1, 30_000), k=st.integers(1, DEEPEST))
def test_a_round_costs_at_least_a_plain_step_and_rises_with_k(method: str, batch: int, context: int, k: int) -> None:
    asked = question(method)
    off = asked.off.cost.decode_step_s(batch, context)
    loaded, *rounds = [asked.on.cost.decode_step_s(batch, context, n, machinery=True) for n in range(DEEPEST + 1)]
    assert off <= loaded
    assert rounds[k - 1] > loaded
    assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(rounds))


@METHODS
@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 300), context=st.integers(1, 30_000), k=st.integers(1, DEEPEST), prompt=st.integers(0, 900))
def test_a_step_is_the_wider_pass_and_the_drafting(method: str, batch: int, context: int, k: int, prompt: int) -> None:
    """Nothing that is accepted, or not, changes what a step costs: its parts add up to it, and without the drafting and
    its host time it is the target's own pass over all verified tokens."""
    asked = question(method)
    work = StepWork(decode_requests=batch, draft_tokens=batch * k, draft_requests=batch, kv_tokens=batch * context,
                    prefill_tokens=prompt, prefill_rows=min(prompt, 1), prefill_pairs=prompt * (prompt + 1) // 2,
                    next_num_spec_tokens=k, machinery=True)  # fmt: skip
    parts = asked.on.cost.parts(work)
    assert sum(parts.values()) == pytest.approx(asked.on.cost.step_s(work), rel=1e-9)
    assert all(seconds >= -1e-12 for seconds in parts.values()), parts
    assert (parts["draft"] > 0) == drafter(method).runs_model
    assert (parts["lookup"] > 0) == drafter(method).looks_up
    idle = StepCost(replace(asked.on.profile, draft=None, draft_mode="none", lookup_request_s=0.0), asked.on.trees)
    wider = replace(work, next_num_spec_tokens=0)
    assert asked.on.cost.step_s(work) - parts["draft"] - parts["lookup"] == pytest.approx(idle.step_s(wider), rel=1e-9)


@METHODS
@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 200), context=st.integers(1, 20_000), k=st.integers(1, DEEPEST))
def test_drafting_costs_the_passes_that_the_drafter_describes(method: str, batch: int, context: int, k: int) -> None:
    """By hand, pass by pass: (rows, rows of logits, queries a request that read the cache)."""
    asked, known = question(method), drafter(method)
    profile = asked.on.profile
    if profile.draft is None:
        return
    one = CompiledPass(profile.draft)
    extra = max(0, known.extra_rows.fixed + known.extra_rows.each * k)
    if known.mode == "heads":
        passes = [(batch, batch, 0)] * k
    elif known.mode == "block":
        passes = [(batch * (k + 1), batch * k, k + 1)]
    elif known.mode == "parallel":
        passes = [(batch * (1 + k + extra), batch * k, 1 + k + extra)]
    else:
        first = (batch * (1 + k + extra), batch, 1 + k + extra) if known.catches_up else (batch, batch, 1)
        rows = asked.on.trees[k - 1].expanded[1:] if asked.on.trees else (1,) * (k - 1)
        passes = [first, *[(batch * n, batch * n, n) for n in rows]]
    seconds = 0.0
    for rows, logits, queries in passes:
        alike = one.alike(batch, rows - batch)
        seconds += one.matrix(rows, alike) + one.head(logits)
        if queries:
            full, windowed = one.kv_rates(queries, 1.0, read_once=True)
            seconds += batch * context * full + batch * min(context, profile.draft.window_tokens) * windowed
    if known.mode == "heads":
        seconds -= (k - 1) * profile.draft.fixed_s
    if known.mode == "block":
        seconds += batch * (1 + k) * profile.draft_catch_up_share * profile.draft.token_s
    work = StepWork(decode_requests=batch, draft_tokens=batch * k, draft_requests=batch, kv_tokens=batch * context,
                    windowed_kv_tokens=batch * min(context, asked.on.cost.window_tokens), next_num_spec_tokens=k,
                    machinery=True)  # fmt: skip
    assert asked.on.cost.parts(work)["draft"] == pytest.approx(seconds, rel=1e-9)


@METHODS
def test_what_is_loaded_takes_blocks_and_nothing_else_does(method: str) -> None:
    asked, known = question(method), drafter(method)
    off, on = asked.off.memory, asked.on.memory
    assert all(value >= 0 for value in (*off.values(), *on.values()))
    loads = known.loads in ("model", "head")
    assert (on["draft_weight_bytes"] > 0) == loads
    assert (on["draft_kv_bytes_per_token"] > 0) == (loads and known.keeps_kv)
    assert (on["num_kv_blocks"] < off["num_kv_blocks"]) == loads
    if not loads:
        assert on["num_kv_blocks"] == off["num_kv_blocks"]
    lookahead = asked.on.limits.lookahead_tokens(3)
    assert lookahead == known.lookahead.at(3) and asked.on.limits.lookahead_tokens(0) == 0


def test_memory_is_never_negative_for_any_target_and_drafter() -> None:
    checked = 0
    for shape in load_models().values():
        for known in all_drafters().values() if shape.kind == "model" else ():
            try:
                found = default_drafter(shape, known.name)
                plan = plan_memory(shape, gpu("B300"), Deployment(), draft=found, method=known.name)
            except (CatalogueError, CapacityError):
                continue
            assert plan.draft_weight_bytes >= 0 and plan.draft_kv_bytes_per_token >= 0 and plan.num_kv_blocks >= 1
            checked += 1
    assert checked > 300


def test_slots_reserved_ahead_are_those_of_the_engines() -> None:
    """vLLM 0.33.0: k for models and heads, k + 1 for block drafters, none for lookups; input slots 1, k, k - 1 or 0."""
    ahead = {name: known.lookahead.at(5) for name, known in all_drafters().items()}
    assert {ahead[m] for m in ("draft_model", "eagle", "eagle2", "eagle3", "mtp", "pard", "p_eagle")} == {5}
    assert ahead["dflash"] == ahead["dspark"] == 6
    assert {ahead[m] for m in ("ngram", "suffix", "retrieval", "medusa", "lookahead", "layer_skip")} == {0}
    rows = {name: known.extra_rows.at(5) for name, known in all_drafters().items()}
    assert (rows["draft_model"], rows["pard"], rows["p_eagle"]) == (1, 5, 4)
    assert not any(rows[m] for m in rows if m not in ("draft_model", "pard", "p_eagle"))


# Names


def test_rows_of_the_drafter_take_of_the_budget_what_vllm_says() -> None:
    slots = {name: question(name).on.limits.draft_slots for name in method_names()}
    expected = {"draft_model": 1, "pard": DEEPEST, "p_eagle": DEEPEST - 1}
    assert slots == {name: expected.get(name, 0) for name in slots}
    pard = Speculation("pard", num_spec_tokens=(DEEPEST,))
    assert resolve(Deployment(engine="sglang"), pard, Slo()).on.limits.draft_slots == 0
    assert question("pard").off.limits.draft_slots == 0
    with pytest.raises(ScenarioError, match="must be more than the 6 rows that the drafter takes"):
        resolve(Deployment(max_num_batched_tokens=6), pard, Slo())


@METHODS
def test_names_and_aliases_lead_to_the_drafter(method: str) -> None:
    known = drafter(method)
    for spelling in (known.name, *known.aliases):
        for written in (spelling, spelling.upper(), spelling.replace("-", " "), f"{spelling} (k=3)"):
            assert find_drafter(written) is known
            assert Speculation(written).method == method


@pytest.mark.parametrize(
    ("written", "method"),
    [
        ("EAGLE-3", "eagle3"), ("EAGLE3", "eagle3"), ("Eagle 2", "eagle2"), ("n-gram (prompt lookup)", "ngram"),
        ("PLD", "ngram"), ("NEXTN", "mtp"), ("STANDALONE", "draft_model"), ("SpS", "draft_model"),
        ("REST", "retrieval"), ("LADE", "lookahead"), ("LayerSkip", "layer_skip"), ("DFlash2", "dflash"),
        ("P-EAGLE", "p_eagle"), ("suffix decoding", "suffix"), ("Medusa-1", "medusa"), ("PARD", "pard"),
        ("SA", "suffix"),
    ],
)  # fmt: skip
def test_what_people_write_is_understood(written: str, method: str) -> None:
    found = find_drafter(written)
    assert found is not None and found.name == method


def test_unknown_names_are_refused_with_the_nearest() -> None:
    assert find_drafter("telepathy") is None and find_drafter("") is None
    with pytest.raises(InputError, match=r"speculation.method 'medsua' is not one of .*did you mean 'medusa'"):
        Speculation("medsua")
    with pytest.raises(ProfileError, match=r"method 'EAGEL' is unknown \(did you mean 'eagle'\?\)"):
        analytic_profile(model("llama-3.1-8b"), gpu("h100"), method="EAGEL")


@METHODS
def test_every_drafter_has_an_acceptance_with_a_source(method: str) -> None:
    found, source = default_acceptance(method, "llama-3.1-8b")
    assert found.expected_length(3) > 1
    known = drafter(method)
    if source.startswith("borrowed from method"):
        assert known.borrows and any(f"method {other}" in source for other in known.borrows)


# Attention and experts, by hand


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "windowed_bytes"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2, 0),  # GQA: 8 key-value heads of 128
        ("deepseek-v3", 61 * (512 + 64) * 2, 0),  # MLA: latent and rope key
        ("gpt-oss-20b", 12 * 2 * 8 * 64 * 2, 12 * 2 * 8 * 64 * 2 * (128 // 16 + 1) * 16),  # half the layers windowed
        ("llama-2-7b", 32 * 2 * 32 * 128 * 2, 0),  # MHA
    ],
)
def test_cache_bytes_a_token(name: str, bytes_per_token: int, windowed_bytes: int) -> None:
    place = Deployment(name, "b300", tp=8 if name == "deepseek-v3" else 1, max_model_len=2048)
    plan = plan_memory(model(name), gpu("b300"), place)
    shards = 8 if name == "deepseek-v3" and not model(name).is_mla else 1
    assert plan.kv_bytes_per_token == bytes_per_token / shards
    assert plan.windowed_bytes_per_request == windowed_bytes
    for dtype in ("fp8", "nvfp4"):
        quantised = plan_memory(model(name), gpu("b300"), replace(place, kv_dtype=dtype))
        assert quantised.kv_bytes_per_token == bytes_per_token * kv_bytes(dtype) / 2


def test_a_drafter_adds_its_own_layers_to_the_cache_in_its_own_format() -> None:
    llama, h100 = model("llama-3.1-8b"), gpu("h100")
    head = default_drafter(llama, "eagle")
    plans = [
        plan_memory(llama, h100, Deployment(), draft=head, method="eagle", kept=DraftMemory(kv_dtype=dtype))
        for dtype in (None, "fp8")
    ]
    assert [plan.draft_kv_bytes_per_token for plan in plans] == [2 * 8 * 128 * 2, 2 * 8 * 128]
    assert plans[0].kv_bytes_per_token == 33 * 2 * 8 * 128 * 2
    block = default_drafter(llama, "dflash")
    assert plan_memory(llama, h100, Deployment(), draft=block, method="dflash").draft_kv_bytes_per_token == 5 * 4096


def test_the_mtp_layer_of_a_mixture_touches_experts_as_its_tokens_do() -> None:
    target, h200 = model("deepseek-v3"), gpu("h200-sxm")
    layer = default_drafter(target, "mtp")
    profile = analytic_profile(target, h200, tp=8, draft=layer, method="mtp")
    assert profile.draft is not None and profile.draft.num_experts == 256
    one = CompiledPass(profile.draft)
    read = [(one.memory_s(n) - profile.draft.weights_s) / profile.draft.experts_s for n in (1, 64, 4096)]
    assert read == pytest.approx([8 / 256, 1 - (1 - 8 / 256) ** 64, 1.0], abs=1e-6)
    assert profile.draft.experts_s == pytest.approx(profile.target.experts_s / 58, rel=0.02)  # 58 MoE layers


def test_a_windowed_drafter_reads_only_its_window() -> None:
    target = model("llama-3.1-8b")
    small = model("llama-3.2-1b")
    windowed = replace(small, name="windowed", windowed_layers=small.num_layers, window_tokens=1024)
    costs = [
        StepCost(analytic_profile(target, gpu("h100"), draft=draft, method="draft_model"))
        for draft in (small, windowed)
    ]
    assert [cost.window_tokens for cost in costs] == [0, 1024]
    near, far = ([cost.decode_step_s(8, context, 3) for cost in costs] for context in (1024, 30_000))
    assert near[0] == pytest.approx(near[1], rel=1e-9)
    off = StepCost(analytic_profile(target, gpu("h100")))
    target_alone = off.decode_step_s(8, 30_000) - off.decode_step_s(8, 1024)
    assert far[1] - near[1] == pytest.approx(target_alone, rel=1e-9), "only the target reads on beyond the window"
    assert far[0] > far[1]


# Own tensor parallelism, own formats


def draft_70b(**changes: object) -> Question:
    values: dict[str, object] = {"method": "draft_model", "draft": "llama-3.2-1b", "num_spec_tokens": (3,)}
    return resolve(Deployment("llama-3.3-70b", tp=8), Speculation(**{**values, **changes}), Slo())  # type: ignore[arg-type]


def test_a_drafter_on_one_gpu_pays_no_collectives_and_fills_that_gpu() -> None:
    split, alone = draft_70b(), draft_70b(draft_tp=1)
    split_cost, alone_cost = split.on.profile.draft, alone.on.profile.draft
    assert split_cost is not None and alone_cost is not None
    assert alone_cost.collective_token_s == 0.0 < split_cost.collective_token_s
    assert alone_cost.weights_s == pytest.approx(8 * split_cost.weights_s)
    assert alone_cost.fixed_s < split_cost.fixed_s
    assert alone.on.memory["draft_weight_bytes"] == pytest.approx(8 * split.on.memory["draft_weight_bytes"])
    assert alone.on.memory["draft_kv_bytes_per_token"] == 8 * split.on.memory["draft_kv_bytes_per_token"]
    assert alone.on.limits.num_kv_blocks < split.on.limits.num_kv_blocks
    assert alone.on.profile.covers["draft_tp"] == "1"


def test_a_head_split_otherwise_needs_its_own_copy_of_what_it_shares() -> None:
    def head(**changes: object) -> float:
        asked = resolve(Deployment("llama-3.3-70b", tp=4), Speculation("eagle", num_spec_tokens=(3,), **changes), Slo())  # type: ignore[arg-type]
        return asked.on.memory["draft_weight_bytes"]

    target = model("llama-3.3-70b")
    ends = 2.0 * (target.embedding_parameters + target.head_parameters)
    assert head(draft_tp=1) == pytest.approx(4 * head() + ends)


@pytest.mark.parametrize(("dtype", "bits"), [("fp8", 8.0), ("int4", 4.25), ("nvfp4", 4.5)])
def test_a_quantised_drafter_is_smaller_and_reads_less(dtype: str, bits: float) -> None:
    plain, quantised = draft_70b(), draft_70b(draft_weight_dtype=dtype)
    shape = model("llama-3.2-1b")
    body = shape.attention_parameters + shape.dense_mlp_parameters
    saved = plain.on.memory["draft_weight_bytes"] - quantised.on.memory["draft_weight_bytes"]
    assert saved == pytest.approx(body * (16 - bits) / 8 / 8)
    a, b = plain.on.profile.draft, quantised.on.profile.draft
    assert a is not None and b is not None and b.weights_s < a.weights_s
    assert quantised.on.limits.num_kv_blocks > plain.on.limits.num_kv_blocks
    assert plain.on.profile.target == quantised.on.profile.target


def test_layers_of_the_target_have_its_format_and_split() -> None:
    target = model("llama-3.1-8b")
    layers = default_drafter(target, "layer_skip")
    assert isinstance(layers, ModelShape) and layers.num_layers == 8 and layers.total_parameters == 0
    cost = analytic_profile(target, gpu("h100"), weight_dtype="fp8", draft=layers, method="layer_skip")
    assert cost.draft is not None
    assert cost.draft.weights_s == pytest.approx(cost.target.weights_s / 4)
    assert cost.verify_skip_share == 0.25
    with pytest.raises(ProfileError, match="drafts with the target's own layers; leave out draft_tp"):
        analytic_profile(target, gpu("h100"), tp=2, draft=layers, method="layer_skip", draft_tp=1)


def test_verifying_after_layer_skipping_saves_compute_but_no_reading() -> None:
    asked = question("layer_skip")
    full = StepCost(replace(asked.on.profile, verify_skip_share=0.0))
    few, many = (StepWork(decode_requests=b, draft_tokens=6 * b, kv_tokens=500 * b) for b in (1, 128))
    assert asked.on.cost.parts(few)["weights"] == full.parts(few)["weights"]
    assert asked.on.cost.step_s(few) == pytest.approx(full.step_s(few), rel=0.02)
    assert asked.on.cost.step_s(many) < 0.9 * full.step_s(many)


def test_lookahead_runs_its_window_whether_anything_matches_or_not() -> None:
    """W = G = 15 for a 7B model (arXiv 2402.02057): (W + G) (N - 1) = 120 tokens a step."""
    asked = resolve(Deployment("llama-2-7b"), Speculation("lookahead", num_spec_tokens=(4,)), Slo())
    assert 1 + asked.verified_drafts(4) == 120
    larger = resolve(Deployment("llama-2-70b", tp=4), Speculation("lookahead", num_spec_tokens=(4,)), Slo())
    assert 1 + larger.verified_drafts(4) == 56
    assert asked.off.cost.decode_step_s(1, 500) < asked.on.cost.decode_step_s(1, 500, 4)
