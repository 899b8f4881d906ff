"""What each learning policy decides, as small stories with numbers to check by hand; and spellings of tables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import ScenarioError
from specsim.policies import Observed, Policy, make_policy, parse_policy
from specsim.policies.ema import padded_batch
from specsim.policies.gate import RollingMean


def told(rule: Policy, accepted: Sequence[int], *, batch: int = 1, drafts: int = 1) -> list[int]:
    """Tell a rule of verifies in which `batch` requests accepted so many drafts in all; k after each."""
    found = []
    for number in accepted:
        rule.observe(Observed(batch=batch, rounds=batch, draft_rounds=batch, drafted=drafts * batch, accepted=number))
        found.append(rule.next_k(batch, 100 * batch, batch))
    return found


def ema(candidates: str, start: int, **settings: object) -> Policy:
    quick = {"initial_k": start, "ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0, **settings}
    options = "".join(f":{name}={value}" for name, value in quick.items())
    return make_policy(parse_policy(f"ema:7:candidates={candidates}{options}"))


@pytest.mark.parametrize(
    ("batch", "padded"), [(1, 1), (8, 8), (9, 10), (31, 32), (33, 40), (61, 64), (65, 72), (250, 256), (257, 272)]
)
def test_batches_are_padded_to_the_captured_ones(batch: int, padded: int) -> None:
    assert padded_batch(batch) == padded


def test_the_built_in_table_starts_at_k_where_it_can_and_else_in_the_middle() -> None:
    rule = make_policy(parse_policy("ema:7"))
    assert [rule.next_k(b, 0, b) for b in (1, 7, 8, 9, 31, 32, 60, 61, 64, 900)] == [7, 7, 1, 1, 1, 1, 1, 0, 0, 0]
    rule = make_policy(parse_policy("ema:3"))
    assert [rule.next_k(b, 0, b) for b in (1, 8, 32, 64)] == [3, 3, 1, 0], "candidates above 3 are dropped"


def test_warm_up_and_interval_are_waited_for() -> None:
    rule = ema("1=1/3/7", 3, warmup_batches=2, update_interval=3)
    assert told(rule, [0] * 6) == [3, 3, 3, 3, 1, 1], "decided at the fifth: two to warm up, then every third"


def test_the_average_moves_k_over_its_thresholds_and_no_earlier() -> None:
    """Up from 3 above 2.5, down to 1 at 0.5 and below (hysteresis 0)."""
    assert told(ema("1=1/3/7", 3, down_hysteresis=0), [2, 2], batch=1) == [3, 3]
    assert told(ema("1=1/3/7", 3, down_hysteresis=0), [5], batch=2) == [3], "2.5 is not above 2.5"
    assert told(ema("1=1/3/7", 3, down_hysteresis=0), [6], batch=2) == [7]
    assert told(ema("1=1/3/7", 3, down_hysteresis=0), [1], batch=2) == [1], "0.5 is low enough"
    assert told(ema("1=1/3/7", 7, down_hysteresis=0), [0]) == [1], "two candidates down at once"
    assert told(ema("1=1/3/7", 1, down_hysteresis=0), [3]) == [7], "and two up"


def test_hysteresis_holds_k_where_it_is() -> None:
    assert told(ema("1=1/3/7", 3, up_hysteresis=0.75), [3, 4]) == [3, 7], "above 3.25"
    assert told(ema("1=1/3/7", 7, down_hysteresis=-0.75), [2, 1]) == [7, 3], "at most 1.75"


def test_an_average_forgets_slowly() -> None:
    """Weight one half: 2 (the start at k = 3), 3, 1.5, 0.75, 0.375."""
    rule = ema("1=1/3/7", 3, ema_alpha=0.5, down_hysteresis=0)
    assert told(rule, [4, 0, 0, 0]) == [7, 3, 3, 1]


def test_zero_steps_draft_nothing_and_try_again_at_the_next_decision() -> None:
    rule = ema("1=0/3", 3, update_interval=2, down_hysteresis=0)
    assert told(rule, [0, 0]) == [3, 0]
    waits = [Observed(batch=2, rounds=2) for _ in range(2)]
    found = []
    for seen in waits:
        rule.observe(seen)
        found.append(rule.next_k(2, 0, 2))
    assert found == [0, 3], "without drafts nothing is learnt, but time passes"
    assert told(rule, [0, 0]) == [3, 0]


def test_a_ceiling_caps_what_does_not_rise() -> None:
    assert told(ema("1=1/3/7", 7, ceiling_coeff=1.0, down_hysteresis=-64), [2]) == [1], "ceil(2) < 3"
    assert told(ema("1=1/3/7", 7, down_hysteresis=-64), [2]) == [7]
    assert told(ema("1=1/3/7", 3, ceiling_coeff=1.0), [3]) == [7], "a rise is not capped"


def test_slots_of_other_batches_keep_their_own_memory() -> None:
    rule = ema("1=1/3,8=1/3", 3)
    told(rule, [0, 0, 0], batch=2)
    assert (rule.next_k(2, 0, 2), rule.next_k(8, 0, 8)) == (1, 3)


def test_a_step_without_decoding_requests_teaches_nothing() -> None:
    rule = ema("1=1/3", 3)
    for _ in range(20):
        rule.observe(Observed(batch=4))
    assert rule.next_k(4, 0, 0) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ema:0:candidates=1=1/3", "no candidate from batch 1 on is at most num_spec_tokens 0 (1, 3)"),
        ("ema:3:candidates=2=1", "policy.candidates batches must rise from 1, got 2 after 0"),
        ("ema:3:candidates=1=1,1=2", "policy.candidates batches must rise from 1, got 1 after 1"),
        ("ema:3:candidates=1", "ema: candidates cannot be '1'"),
        ("ema:3:ema_alpha=nan", "policy ema: ema_alpha cannot be 'nan'"),
        ("ema:3:ema_alpha=1:ema_alpha=1", "sets ema_alpha twice"),
        ("ema:3:update_interval=0", "policy.update_interval must be a whole number >= 1, got 0"),
        ("ema:3:alpha=0.1", "policy ema has no setting 'alpha' (did you mean 'ema_alpha'?); it has candidates,"),
        ("ema:3:initial_k=65", "policy.initial_k must be a whole number in 0..64, got 65"),
        ("ema:3:initial_k=none", "policy ema: initial_k cannot be 'none'"),
        ("ema:x", "policy 'ema:x' must be ema:K, e.g. ema:5"),
        ("ema", "policy 'ema' must be ema:K, e.g. ema:5"),
        ("ema:3:up_hysteresis=0/inf", "policy ema: up_hysteresis cannot be '0/inf'"),
        ("gate:3", "policy 'gate:3' must be gate:K:THRESHOLD, e.g. gate:3:0.4"),
        ("gate:3:1.5", "policy.threshold must be a number in 0..1, got 1.5"),
        ("gate:3:0.4:window=0", "policy.window must be a whole number >= 1, got 0"),
        ("trt_gate:3:1.5:20", "policy.threshold must be a number in 0..1, got 1.5"),
        ("trt_gate:3:0.5:20:over=tokens", "policy trt_gate: over cannot be 'tokens'"),
        ("context:0/1-4=3;0", "must be context:FROM/FIRST-LAST=K,...;FROM/..."),
        ("context:5/1-4=3", "policy.rows must start at context 0, got 5"),
        ("context:0/1-4=3;100/1-4=2;50/1-4=1", "policy.rows must rise in context"),
        ("context:0/2-4=3", "policy.rows at context 0: must be rows [first, last, k] whose first range starts at 1"),
        ("draft_len_schedule:8=2,4=4", "must be draft_len_schedule:LAST=K,..., e.g. draft_len_schedule:4=4,8=2,32=1"),
        ("draft_len_schedule_lower:2=4", "policy.table must be rows [first, last, k] whose first range starts at 1"),
        ("max_concurrency:3", "policy 'max_concurrency:3' must be max_concurrency:K:BATCH, e.g. max_concurrency:3:64"),
        ("static:3:window=3", "policy static has no setting 'window'; it has none"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_with_the_way_out(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_policy(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gate_closes_below_its_threshold_and_tries_again() -> None:
    rule = make_policy(parse_policy("gate:4:0.5:window=2:reprobe_steps=3"))
    assert told(rule, [4, 0], drafts=4) == [4, 4], "a mean of exactly one half is enough"
    assert told(rule, [0], drafts=4) == [0]
    assert told(rule, [0, 0, 0], drafts=0) == [0, 0, 4], "after three steps without drafts"
    assert told(rule, [4, 0, 4], drafts=4) == [4, 4, 4], "with nothing remembered of before"


def test_a_gate_does_not_count_steps_in_which_nobody_decodes() -> None:
    rule = make_policy(parse_policy("gate:4:0.5:window=1:reprobe_steps=2"))
    assert told(rule, [0], drafts=4) == [0]
    for _ in range(9):
        rule.observe(Observed(batch=1))
    assert rule.next_k(1, 0, 0) == 0


def test_the_gate_of_trtllm_never_opens_again() -> None:
    rule = make_policy(parse_policy("trt_gate:4:0.5:2"))
    assert told(rule, [0], drafts=4) == [4], "the window is not full yet"
    assert told(rule, [2, 4, 4], drafts=4) == [0, 0, 0], "(0 + 0.5) / 2 is below one half"


def test_its_older_form_averages_completed_requests_without_the_bonus_token() -> None:
    rule = make_policy(parse_policy("trt_gate:4:1.5:2:over=requests"))
    ks = []
    for completed in ([(30, 10)], [(20, 10)], [(10, 10), (30, 10)], []):
        rule.observe(Observed(batch=3, rounds=3, draft_rounds=3, drafted=12, accepted=0, completed=completed))
        ks.append(rule.next_k(3, 0, 3))
    assert ks == [4, 4, 0, 0], "2; then (2 + 1) / 2 is not below; then (1 + 0) / 2 is, and that is for good"


@given(samples=st.lists(st.floats(0, 1), min_size=1, max_size=40), window=st.integers(1, 8))
def test_a_rolling_mean_is_the_mean_of_the_last_ones(samples: list[float], window: int) -> None:
    mean = RollingMean(window)
    found = [mean.add(sample) for sample in samples]
    for n, value in enumerate(found):
        if n + 1 < window:
            assert value is None
        else:
            assert value == pytest.approx(sum(samples[n + 1 - window : n + 1]) / window, abs=1e-12)
            assert value >= 0


def test_context_takes_the_table_of_its_bucket() -> None:
    rule = make_policy(parse_policy("context:0/1-32=3,33-512=0;8192/1-512=5"))
    assert [rule.next_k(b, b * c, b) for b, c in ((1, 100), (40, 100), (40, 8191), (40, 8192), (1, 10**6))] == [
        3, 0, 0, 5, 5,
    ]  # fmt: skip
    assert rule.next_k(8, 0, 0) == 3, "with nobody decoding the context is 0"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("draft_len_schedule:4=4,8=2,32=1", "schedule:1-4=4,5-8=2,9-32=1,33-2147483647=0"),
        ("draft_len_schedule_lower:1=4,4=2,8=0", "schedule:1-3=4,4-7=2,8-2147483647=0"),
        ("max_concurrency:3:64", "off_above:3:64"),
        ("max-concurrency:3:64", "off_above:3:64"),
    ],
)
def test_words_of_trtllm_stand_for_tables(text: str, same: str) -> None:
    assert parse_policy(text) == parse_policy(same)
