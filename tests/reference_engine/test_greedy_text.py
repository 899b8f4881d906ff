"""Greedy text does not depend on how it was made: drafter, batch, chunks, preemption, discipline, policy."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from builders import make_limits
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
transformers = pytest.importorskip("transformers", reason="the calibrate extra is not installed")

import served as served_module  # noqa: E402
from served import DRAFTERS, _plain, greedy_text, prompts_of, run_model  # noqa: E402
from strategies import RULES  # noqa: E402

from calibrate.engine import ModelRunner, Outcome  # noqa: E402
from calibrate.models import FlatModel  # noqa: E402
from specsim.config import PolicySpec  # noqa: E402
from specsim.disciplines import STATIC, VLLM, Discipline  # noqa: E402
from specsim.policies import parse_policy  # noqa: E402
from specsim.scheduler import StepPlan  # noqa: E402

PROMPTS = [9, 14, 5, 20, 1, 16]
OUTPUTS = [12, 9, 16, 8, 1, 14]
SETTINGS = {
    "together": {},
    "one at a time": {"max_num_seqs": 1},
    "chunks of a few tokens": {"max_num_batched_tokens": 7},
    "preempted": {"num_kv_blocks": 34, "block_size_tokens": 2, "max_num_seqs": 4},
    "at the end of the model's length": {"max_model_len": 29},
}
POLICIES = [
    PolicySpec("static", 1),
    PolicySpec("static", 4),
    parse_policy("schedule:1-2=4,3-4=2,5-9=0"),
    PolicySpec("off_above", 3, batch_limit=2),
    parse_policy("gate:3:0.5:window=2:reprobe_steps=3"),
    parse_policy("budget:4"),
]


def expected() -> list[list[int]]:
    return [greedy_text(prompt, n) for prompt, n in zip(prompts_of(PROMPTS), OUTPUTS, strict=True)]


@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_text_is_that_of_transformers_alone(setting: str, drafter: str | None) -> None:
    limits = make_limits(**SETTINGS[setting])
    served, runner = run_model(prompt_tokens=PROMPTS, output_tokens=OUTPUTS, drafter=drafter, limits=limits)
    rejected = served.result.requests.rejected
    for n, text in enumerate(expected()):
        assert runner.output(n) == ([] if rejected[n] else text)
    assert rejected.sum() == (1 if setting.startswith("at the end") else 0)
    if setting == "preempted":
        assert served.result.requests.preemptions.sum() > 0
    if drafter:
        totals = served.result.totals
        assert totals.drafted_tokens > 0
        assert totals.accepted_tokens > 0
        assert totals.accepted_tokens < totals.drafted_tokens or drafter == "itself"


def test_a_draft_model_that_is_the_target_is_always_right() -> None:
    """So it has not lost sight of a single token: all rounds but the last of a request emit k + 1."""
    served, _ = run_model(prompt_tokens=PROMPTS, output_tokens=[29] * 6, drafter="itself")
    last = {r.request: n for n, r in enumerate(served.rounds)}
    assert all(r.emitted == r.drafted + 1 == 4 for n, r in enumerate(served.rounds) if n != last[r.request])


def test_plain_text_is_that_of_generate() -> None:
    prompt = prompts_of([20])[0]
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        text = _plain().generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert greedy_text(prompt, 12) == text[0, 20:].tolist()


@settings(max_examples=25, deadline=None)
@given(
    drafter=st.sampled_from([*DRAFTERS]),
    policy=st.sampled_from(POLICIES),
    rules=st.sampled_from(RULES),
    seats=st.sampled_from([1, 2, 5]),
    budget=st.sampled_from([24, 40, 200]),
    blocks=st.sampled_from([28, 36, 500]),
    gap_s=st.sampled_from([0.0, 0.01, 0.03]),
)
def test_random_engines_write_the_same_text(
    drafter: str, policy: PolicySpec, rules: object, seats: int, budget: int, blocks: int, gap_s: float
) -> None:
    limits = make_limits(
        discipline=rules, max_num_seqs=seats, max_num_batched_tokens=budget, num_kv_blocks=blocks, block_size_tokens=2,
        max_model_len=40, enable_prefix_caching=False,
    )  # fmt: skip
    served, runner = run_model(
        prompt_tokens=PROMPTS,
        output_tokens=OUTPUTS,
        drafter=drafter,
        policy=policy,
        limits=limits,
        arrival_s=[n * gap_s for n in range(len(PROMPTS))],
    )
    for n, text in enumerate(expected()):
        assert runner.output(n) == ([] if served.result.requests.rejected[n] else text)


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (replace(VLLM, extra_step=True), "leaving"),
        (replace(VLLM, first_round_placeholders=True), "placeholders"),
        (STATIC, "padding"),
    ],
)
def test_rows_that_emit_nothing_are_computed(rules: Discipline, what: str) -> None:
    """Guard: finished requests, placeholders and padding do occur in worlds like those above, and are computed."""
    seen: list[str] = []
    computed: list[int] = []

    class Seeing(ModelRunner):
        def run(self, plan: StepPlan, next_k: int, held: frozenset[int]) -> Outcome:
            seen.extend(["leaving"] * len(plan.leaving) + ["padding"] * plan.padded_tokens)
            seen.extend("placeholders" for item in plan.scheduled if item.num_placeholder_tokens)
            tokens = sum(item.num_tokens + item.num_placeholder_tokens for item in plan.scheduled)
            padded = plan.padded_tokens * len(plan.scheduled) if plan.padded_tokens else tokens
            computed.append(padded + sum(1 + request.num_draft_tokens for request in plan.leaving))
            return super().run(plan, next_k, held)

    with mock.patch.object(served_module, "ModelRunner", Seeing), mock.patch.object(
        FlatModel, "run", autospec=True, side_effect=FlatModel.run
    ) as passes:  # fmt: skip
        run_model(
            prompt_tokens=PROMPTS,
            output_tokens=OUTPUTS,
            drafter="ngram",
            arrival_s=[n * 0.03 for n in range(len(PROMPTS))],
            limits=make_limits(discipline=rules, max_model_len=64, enable_prefix_caching=False),
        )
    assert what in seen
    assert [call.args[1].shape[1] for call in passes.call_args_list] == computed
