"""What holds for every kind of policy in the registry, over random worlds: same on both replicas, within bounds, blind.

And the limits in which a policy that learns or looks must be the static one, bit for bit.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from builders import FixedLuck, make_cost, make_limits, make_profile, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import CROWDED, KINDS, POLICY_LIST, Watch, World, run, worlds

from specsim.config import PolicySpec
from specsim.engine import simulator
from specsim.engine.setup import engine_view
from specsim.policies import KINDS as POLICY_KINDS
from specsim.policies import EngineView, Observed, Policy, make_policy, parse_policy
from specsim.records import RunResult
from specsim.workload import Workload

each_policy = pytest.mark.parametrize("policy", POLICY_LIST, ids=lambda policy: policy.label)


def test_every_kind_is_held_against_the_laws() -> None:
    assert {policy.kind for policy in POLICY_LIST} == set(POLICY_KINDS)


@each_policy
@settings(max_examples=12, deadline=None)
@given(world=worlds())
def test_both_replicas_do_the_same_step_by_step(policy: PolicySpec, world: World) -> None:
    world = replace(world, policy=policy)
    fast, plain = Watch(), Watch()
    run(world, plain=False, watch=fast)
    run(world, plain=True, watch=plain)
    assert fast.steps == plain.steps
    assert all(0 <= step.next_k <= policy.num_spec_tokens for step in plain.steps)


def test_the_list_moves() -> None:
    """Guard: in CROWDED most policies that may change k do so, or the laws above say little."""
    moving = {
        policy.label
        for policy in POLICY_LIST
        if len(run(replace(CROWDED, policy=policy), plain=False).totals.k_steps) > 1
    }
    assert len(moving) >= 6, moving


SAME_AS_STATIC = [
    "schedule:1-9=3",
    "schedule:1-2=3,3-9=3",
    "off_above:3:2147483647",
    "context:0/1-9=3;30/1-4=3,5-9=3",
    "ema:3:candidates=1=3:update_interval=1:warmup_batches=0",
    "budget:3:budget_tokens=100000",
    "gate:3:0:window=1",
    "trt_gate:3:0:1",
    "trt_gate:3:0:1:over=requests",
]  # fmt: skip


@KINDS
@pytest.mark.parametrize("text", SAME_AS_STATIC)
@settings(max_examples=12, deadline=None)
@given(world=worlds())
def test_a_policy_that_never_moves_is_static_bit_for_bit(plain: bool, text: str, world: World) -> None:
    # Placeholders are for a k that is constant by name.
    rules = replace(world.limits.discipline, first_round_placeholders=False)
    world = replace(world, limits=replace(world.limits, discipline=rules))
    static = run(replace(world, policy=PolicySpec("static", 3)), plain=plain)
    assert_same(run(replace(world, policy=parse_policy(text)), plain=plain), static)


def assert_same(first: RunResult, second: RunResult) -> None:
    for name, column in asdict(second.requests).items():
        np.testing.assert_array_equal(getattr(first.requests, name), column, err_msg=name)
    assert asdict(first.totals) == asdict(second.totals)
    assert first.gaps.counts == second.gaps.counts
    assert (first.end_s, first.gaps.zeros) == (second.end_s, second.gaps.zeros)


@KINDS
@pytest.mark.parametrize(
    ("text", "closed"),
    [("trt_gate:3:0.01:4", 4), ("gate:3:0.01:window=4:reprobe_steps=1000", 4), ("gate:3:1:window=4", 4)],
)
def test_a_gate_above_any_acceptance_ends_in_plain_decoding(plain: bool, text: str, closed: int) -> None:
    """Nothing is ever accepted (or never everything): after a window of drafts none is made."""
    world = World(
        trace=make_trace(arrival_s=[0.0] * 3, prompt_tokens=8, output_tokens=60),
        luck=FixedLuck(constant=0),
        policy=parse_policy(text),
    )
    watch = Watch()
    run(world, plain=plain, watch=watch)
    drafted = [step.draft_tokens for step in watch.steps]
    assert drafted[: 2 + closed] == [0] + [9] * (closed + 1), "one step of drafts was on its way when the gate closed"
    assert set(drafted[2 + closed :]) == {0}


class _Watched(Workload):
    """Raises when lengths of outputs or luck are read while a policy thinks."""

    thinking = False

    def __getattribute__(self, name: str) -> Any:
        if _Watched.thinking:
            raise AssertionError(f"the future was looked at: {name}")
        return super().__getattribute__(name)


def _blind(policy: Policy, calls: list[str]) -> Policy:
    """The policy, during whose calls the workload cannot be read; what it is told is numbers and arrays of numbers."""

    def guarded(name: str) -> Any:
        call = getattr(policy, name)

        def inner(*args: Any) -> Any:
            for value in args:
                values = [getattr(value, n) for n in value.__slots__] if isinstance(value, Observed) else [value]
                assert all(isinstance(v, int | np.ndarray | list | tuple) for v in values), values
            _Watched.thinking = True
            calls.append(name)
            try:
                return call(*args)
            finally:
                _Watched.thinking = False

        return inner

    for name in ("next_k", "observe", "trim"):
        setattr(policy, name, guarded(name))
    return policy


@KINDS
@each_policy
def test_no_policy_reads_output_lengths_or_luck(plain: bool, policy: PolicySpec) -> None:
    calls: list[str] = []
    world = replace(CROWDED, policy=policy)
    expected = run(world, plain=plain)
    with (
        mock.patch("strategies.Workload", _Watched),
        mock.patch.object(simulator, "make_policy", lambda spec, view: _blind(make_policy(spec, view), calls)),
    ):
        assert_same(run(world, plain=plain), expected)
    rule = POLICY_KINDS[policy.kind].make(policy, EngineView(lambda k: 1.0, lambda *step: 1.0))
    if plain or not rule.constant:
        assert "next_k" in calls
    assert ("observe" in calls) == (rule.watches != "nothing")
    _Watched.thinking = True
    try:
        with pytest.raises(AssertionError, match="future"):
            _ = _Watched.luck.__get__(object.__new__(_Watched))(0)
    finally:
        _Watched.thinking = False


@KINDS
@each_policy
def test_loaded_machinery_costs_the_same_under_every_policy(plain: bool, policy: PolicySpec) -> None:
    """Its cost a step and a request is paid at every k, 0 among them, and not at all by off."""
    host_s, request_s = 1e-6, 1e-7
    world = World(
        trace=make_trace(
            arrival_s=[0.0] * 6, prompt_tokens=[5, 9, 30, 7, 7, 60], output_tokens=[30, 20, 10, 40, 5, 25]
        ),
        luck=FixedLuck(max_run=3),
        limits=make_limits(max_num_seqs=8),
        policy=policy,
    )
    loaded = replace(world, profile=make_profile(loaded_host_s=host_s, loaded_request_s=request_s))
    free, paid = Watch(), Watch()
    run(world, plain=plain, watch=free)
    run(loaded, plain=plain, watch=paid)
    assert len(free.steps) == len(paid.steps)
    for a, b in zip(free.steps, paid.steps, strict=True):
        assert a.next_k == b.next_k
        more = 0.0 if policy.kind == "off" else host_s + a.decode_requests * request_s
        assert b.seconds - a.seconds == pytest.approx(more, rel=1e-6, abs=1e-12)


@given(
    first=st.sampled_from(POLICY_LIST),
    second=st.sampled_from(POLICY_LIST),
    text=st.sampled_from(sorted(SAME_AS_STATIC)),
)
def test_labels_tell_policies_apart(first: PolicySpec, second: PolicySpec, text: str) -> None:
    assert (first.label == second.label) == (first == second)
    assert parse_policy(text).label != PolicySpec("static", 3).label


@pytest.mark.parametrize("name", POLICY_KINDS)
def test_the_example_of_every_kind_is_read_and_compared(name: str) -> None:
    kind = POLICY_KINDS[name]
    spec = parse_policy(kind.example)
    assert spec.kind == name
    assert hash(spec) == hash(parse_policy(kind.example))
    assert spec.num_spec_tokens <= 64


@each_policy
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_an_answer_holds_as_long_as_the_policy_says(policy: PolicySpec, data: st.DataObject) -> None:
    """Whatever it is told in between of steps without a completion, for the same requests and fewer cached tokens."""
    cost = make_cost()
    rule = make_policy(policy, engine_view(FixedLuck(), cost, make_limits(), policy.num_spec_tokens))  # type: ignore[arg-type]

    def step(batch: int, completed: list[tuple[int, int]]) -> Observed:
        drafts = np.array(data.draw(st.lists(st.integers(0, policy.num_spec_tokens), min_size=batch, max_size=batch)))
        accepted = np.array([data.draw(st.integers(0, int(d))) for d in drafts])
        return Observed(batch, batch, int((drafts > 0).sum()), int(drafts.sum()), int(accepted.sum()), completed,
                        np.arange(batch), drafts.astype(np.int64), accepted.astype(np.int64) + 1)  # fmt: skip

    for _ in range(data.draw(st.integers(1, 6))):
        batch, kv_tokens = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 3000))
        answer = rule.next_k(batch, kv_tokens, batch)
        steps, below = rule.steady_for(batch, kv_tokens, batch)
        assert steps >= 1
        for _ in range(min(steps, 8) - 1):
            if rule.watches != "nothing":
                rule.observe(step(batch, []))
            kv_tokens += data.draw(st.integers(1, 40 * batch))
            if kv_tokens >= below:
                break
            assert rule.next_k(batch, kv_tokens, batch) == answer
        if rule.watches != "nothing":
            rule.observe(step(batch, [(data.draw(st.integers(1, 30)), 10)] * data.draw(st.integers(0, 3))))


def test_most_policies_hold_for_a_while() -> None:
    """Guard: for most of them the law above says something."""
    view = engine_view(FixedLuck(), make_cost(), make_limits(), 5)  # type: ignore[arg-type]
    rules = [make_policy(policy, view) for policy in POLICY_LIST if policy.num_spec_tokens <= 5]
    assert sum(rule.constant or rule.steady_for(2, 100, 2)[0] > 1 for rule in rules) > len(rules) / 2
