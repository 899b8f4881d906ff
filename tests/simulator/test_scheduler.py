"""The scheduling rules of vLLM V1 as small stories, each with numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from builders import FixedLuck, make_limits, make_trace
from hypothesis import given
from hypothesis import strategies as st
from strategies import World, run

from specsim.admission import never_fits
from specsim.config import PolicySpec
from specsim.errors import InvariantError
from specsim.request import MOVES, Request, State
from specsim.scheduler import Scheduler, StepPlan


class Engine:
    """A scheduler whose steps are told what is accepted: `step(1=3)` style stories without a clock."""

    def __init__(self, *prompts: int, k: int = 0, hash_block: int | None = None, **limits: Any) -> None:
        self.k = k
        values = {"num_kv_blocks": 1000, "block_size_tokens": 4, "max_num_seqs": 64, "max_num_batched_tokens": 1000}
        self.scheduler = Scheduler(make_limits(**{**values, **limits}), num_spec_tokens=k, hash_block_tokens=hash_block)
        self.requests: list[Request] = []
        for prompt in prompts:
            self.add(prompt)

    def add(self, prompt: int, hashes: tuple[int, ...] = ()) -> Request:
        request = Request(len(self.requests), prompt, hashes)
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def step(self, accepted: int = 0, *, finish: Iterable[int] = ()) -> StepPlan:
        """One step in which every round accepts `accepted` drafts, or as many as it has."""
        plan = self.scheduler.schedule()
        emitted = {}
        for item in plan.scheduled:
            if item.request.is_decoding:
                emitted[item.request.request_id] = 1 + min(accepted, item.num_draft_tokens)
            elif item.finishes_prompt:
                emitted[item.request.request_id] = 1
        self.scheduler.update(plan, emitted, set(finish), lambda request: self.k)
        return plan

    @property
    def running(self) -> list[int]:
        return [r.request_id for r in self.scheduler.running]

    @property
    def waiting(self) -> list[int]:
        return [r.request_id for r in self.scheduler.waiting]

    @property
    def used(self) -> int:
        return self.scheduler.kv.pool.used


def tokens(plan: StepPlan) -> list[tuple[int, int]]:
    """(request, tokens) in the order in which they were scheduled."""
    return [(item.request.request_id, item.num_tokens) for item in plan.scheduled]


def drafts(plan: StepPlan) -> list[int]:
    return [item.num_draft_tokens for item in plan.scheduled]


def test_running_requests_come_first_in_order_of_admission() -> None:
    engine = Engine(5, 6)
    assert tokens(engine.step()) == [(0, 5), (1, 6)]
    engine.add(7)
    assert tokens(engine.step()) == [(0, 1), (1, 1), (2, 7)]
    assert tokens(engine.step()) == [(0, 1), (1, 1), (2, 1)]


def test_a_prompt_is_computed_in_chunks_and_samples_with_the_last() -> None:
    engine = Engine(50, max_num_batched_tokens=20)
    plans = [engine.step() for _ in range(4)]
    assert [tokens(plan) for plan in plans] == [[(0, 20)], [(0, 20)], [(0, 10)], [(0, 1)]]
    assert [plan.scheduled[0].finishes_prompt for plan in plans] == [False, False, True, False]
    assert [plan.scheduled[0].context_tokens for plan in plans] == [0, 20, 40, 50]
    assert engine.requests[0].num_emitted_tokens == 2


def test_a_chunk_takes_what_decoding_leaves_of_the_budget() -> None:
    engine = Engine(3, 3, max_num_batched_tokens=10)
    engine.step()
    engine.add(30)
    assert tokens(engine.step()) == [(0, 1), (1, 1), (2, 8)]


def test_one_step_finishes_a_prompt_and_begins_the_next() -> None:
    engine = Engine(12, 12, max_num_batched_tokens=16)
    assert tokens(engine.step()) == [(0, 12), (1, 4)]
    assert tokens(engine.step()) == [(0, 1), (1, 8)]


def test_drafts_are_charged_in_full() -> None:
    engine = Engine(3, 3, 3, 3, k=4, max_num_batched_tokens=20)
    engine.step()
    engine.add(5)
    plan = engine.step()
    assert tokens(plan) == [(0, 5), (1, 5), (2, 5), (3, 5)]
    assert engine.waiting == [4], "4 x (1 + 4) tokens use up the budget whatever is accepted"
    engine = Engine(3, 3, 3, 3, k=3, max_num_batched_tokens=20)
    engine.step()
    engine.add(5)
    assert tokens(engine.step())[-1] == (4, 4)


def test_drafts_are_cut_at_the_end_of_the_budget() -> None:
    engine = Engine(3, 3, 3, 3, k=4, max_num_batched_tokens=12)
    engine.step()
    plan = engine.step(accepted=4)
    assert tokens(plan) == [(0, 5), (1, 5), (2, 2)]
    assert drafts(plan) == [4, 4, 1]
    assert [r.num_emitted_tokens for r in engine.requests] == [6, 6, 3, 1]
    assert engine.requests[3].num_draft_tokens == 4, "who got nothing keeps its drafts"


def test_rows_of_the_drafter_take_their_part_of_the_budget() -> None:
    engine = Engine(3, 3, 3, 3, k=4, max_num_batched_tokens=17, draft_slots=2)
    assert tokens(engine.step()) == [(0, 3), (1, 3), (2, 3)], "3 x (3 + 2) leave no row for a prompt beside its slots"
    engine = Engine(3, 3, 3, k=4, max_num_batched_tokens=17, draft_slots=2)
    engine.step()
    assert tokens(engine.step()) == [(0, 5), (1, 5), (2, 1)], "7 + 7 leave 3, of which one is the target's"
    engine = Engine(3, 30, k=4, max_num_batched_tokens=17, draft_slots=2)
    assert tokens(engine.step()) == [(0, 3), (1, 10)]
    assert tokens(engine.step()) == [(0, 5), (1, 8)]


def test_a_prefill_has_no_drafts() -> None:
    engine = Engine(30, k=4, max_num_batched_tokens=20)
    assert drafts(engine.step()) == [0]
    assert engine.requests[0].num_draft_tokens == 0, "nothing is drafted in the middle of a prompt"
    assert drafts(engine.step()) == [0]
    assert drafts(engine.step()) == [4]


def test_accepted_tokens_are_computed_and_rejected_ones_again() -> None:
    engine = Engine(10, k=4)
    engine.step()
    request = engine.requests[0]
    assert (request.num_computed_tokens, request.num_tokens) == (10, 11)
    engine.step(accepted=2)
    assert (request.num_computed_tokens, request.num_tokens) == (13, 14), "the bonus token is not in the cache yet"
    assert engine.step(accepted=0).scheduled[0].context_tokens == 13
    assert engine.step().scheduled[0].context_tokens == 14


@pytest.mark.parametrize(("lookahead", "prefill", "decode"), [(True, 2, 3), (False, 1, 2)])
def test_blocks_are_reserved_for_the_drafter_too(lookahead: bool, prefill: int, decode: int) -> None:
    """Prompt 4, k 3, blocks of 4: 4 + 3 tokens, then 4 + (1 + 3) + 3; a lookup drafter writes no keys of its own."""
    engine = Engine(4, k=3, lookahead_drafts=lookahead)
    engine.step()
    assert engine.used == prefill
    engine.step()
    assert engine.used == decode


def test_rejection_gives_no_blocks_back() -> None:
    engine = Engine(4, k=7, lookahead_drafts=False)
    engine.step()
    engine.k = 0
    engine.step(accepted=0)
    assert engine.used == 3, "4 + 1 + 7 tokens"
    engine.step()
    assert engine.requests[0].num_computed_tokens == 6
    assert engine.used == 3, "2 would do"


def test_when_blocks_run_out_the_last_one_goes_and_nobody_comes() -> None:
    engine = Engine(8, 8, num_kv_blocks=5)
    engine.step()
    assert engine.used == 4
    engine.add(1)
    plan = engine.step()  # both need a third block, one is left
    assert [r.request_id for r in plan.preempted] == [1]
    assert tokens(plan) == [(0, 1)]
    assert engine.waiting == [1, 2], "back at the head"
    assert engine.requests[1].state is State.PREEMPTED
    plan = engine.step()
    assert plan.preempted == []
    assert tokens(plan) == [(0, 1)], "and then the head does not fit: 9 tokens are 3 blocks"
    engine.step(finish=[0])
    assert tokens(engine.step()) == [(1, 9), (2, 1)]


def test_a_step_that_preempts_admits_nobody_although_it_could() -> None:
    engine = Engine(4, 4, k=7, num_kv_blocks=5, lookahead_drafts=False)
    engine.step()
    plan = engine.step()  # each needs 4 + 1 + 7 tokens, 3 blocks
    assert [r.request_id for r in plan.preempted] == [1]
    assert tokens(plan) == [(0, 8)]
    assert engine.waiting == [1]
    assert engine.scheduler.kv.pool.available == 2, "the guard: without drafts its 5 tokens would fit"


def test_a_preempted_request_is_computed_again_with_what_it_has_emitted() -> None:
    engine = Engine(6, 6, k=2, num_kv_blocks=7, lookahead_drafts=False)
    engine.step()
    emitted = [1]
    while not (plan := engine.step(accepted=2)).preempted:
        emitted.append(engine.requests[1].num_emitted_tokens)
    victim = engine.requests[1]
    assert plan.preempted == [victim]
    assert (victim.num_computed_tokens, victim.num_draft_tokens, victim.is_decoding) == (0, 0, False)
    assert victim.num_emitted_tokens == emitted[-1] > 1, "what is emitted stays emitted"
    engine.step(finish=[0])
    plan = engine.step()
    assert tokens(plan) == [(1, 6 + emitted[-1])]
    assert plan.scheduled[0].finishes_prompt
    assert victim.num_emitted_tokens == emitted[-1] + 1, "recomputing ends with the next token"


def test_preempted_requests_queue_at_the_head_in_their_old_order() -> None:
    engine = Engine(4, 4, 4, num_kv_blocks=3)
    engine.step()
    engine.add(4)
    plan = engine.step()
    assert [r.request_id for r in plan.preempted] == [2, 1], "for the first, and then for want of a block of its own"
    assert tokens(plan) == [(0, 1)]
    assert engine.waiting == [1, 2, 3]


def test_who_is_last_preempts_itself() -> None:
    engine = Engine(7, 8, num_kv_blocks=4)
    engine.step()
    plan = engine.step()
    assert tokens(plan) == [(0, 1)], "the first has room left in its second block"
    assert [r.request_id for r in plan.preempted] == [1]


def test_as_many_go_as_it_takes() -> None:
    engine = Engine(16, 4, 4, k=11, num_kv_blocks=7, lookahead_drafts=False)
    engine.step()
    assert engine.used == 6
    plan = engine.step()  # 16 + 1 + 11 tokens are 7 blocks, 3 more than it has
    assert [r.request_id for r in plan.preempted] == [2, 1]
    assert tokens(plan) == [(0, 12)]
    assert engine.waiting == [1, 2]


def test_places_are_limited() -> None:
    engine = Engine(3, 3, 3, max_num_seqs=2)
    assert tokens(engine.step()) == [(0, 3), (1, 3)]
    assert tokens(engine.step(finish=[0])) == [(0, 1), (1, 1)]
    assert tokens(engine.step()) == [(1, 1), (2, 3)]


def test_a_head_that_does_not_fit_blocks_those_behind_it() -> None:
    engine = Engine(8, num_kv_blocks=6)
    engine.step()
    engine.add(20)
    engine.add(1)
    assert tokens(engine.step()) == [(0, 1)]
    assert engine.waiting == [1, 2], "one block would do for the last"
    engine.step(finish=[0])
    assert tokens(engine.step()) == [(1, 20), (2, 1)]


def test_waiting_is_first_come_first_served() -> None:
    engine = Engine(9, 1, 1, max_num_batched_tokens=5)
    assert [tokens(engine.step()) for _ in range(2)] == [[(0, 5)], [(0, 4), (1, 1)]]
    assert engine.waiting == [2]


@pytest.mark.parametrize(("prompt", "cached"), [(8, 0), (9, 8), (16, 8), (17, 16), (100, 16)])
def test_a_prefix_hit_never_covers_the_last_token(prompt: int, cached: int) -> None:
    """The last token must be computed, since the next one is sampled from it."""
    engine = Engine(hash_block=8)
    engine.add(17, (70, 71))
    engine.step(finish=[])
    engine.add(prompt, (70, 71))
    item = engine.step().scheduled[-1]
    assert (item.context_tokens, item.num_tokens) == (cached, prompt - cached)
    assert item.finishes_prompt


def test_a_request_shares_what_another_computes_in_the_same_step() -> None:
    engine = Engine(hash_block=8)
    engine.add(20, (70, 71))
    engine.add(20, (70, 71))
    assert tokens(engine.step()) == [(0, 20), (1, 4)]
    assert engine.used == 5 + 1


def test_prefixes_can_be_switched_off() -> None:
    engine = Engine(hash_block=8, enable_prefix_caching=False)
    engine.add(20, (70, 71))
    engine.add(20, (70, 71))
    assert tokens(engine.step()) == [(0, 20), (1, 20)]


def test_a_resumed_request_finds_its_own_prefix() -> None:
    engine = Engine(hash_block=8, num_kv_blocks=9)
    engine.add(11, (1,))
    engine.add(19, (2, 3))
    engine.step()
    plan = StepPlan()
    while not plan.preempted:
        plan = engine.step()
    assert [r.request_id for r in plan.preempted] == [1]
    engine.step(finish=[0])
    item = engine.step().scheduled[0]
    assert item.request.request_id == 1
    assert item.context_tokens == 16, "its entries lay unreferenced until it came back"


@pytest.mark.parametrize(("room", "expected"), [(0, []), (1, [0]), (2, [1, 0]), (3, [2, 1, 0]), (9, [4, 4, 4])])
def test_no_draft_lies_beyond_the_length_of_the_model(room: int, expected: list[int]) -> None:
    """With `room` tokens left behind the first emitted one, a round may emit no more than those."""
    engine = Engine(10, k=4, max_model_len=10 + 1 + room)
    engine.step()
    seen = []
    for _ in expected:
        plan = engine.step()
        seen += drafts(plan)
        item = plan.scheduled[0]
        assert item.context_tokens + item.num_tokens <= engine.scheduler.limits.max_model_len - 1
    assert seen == expected


def test_a_budget_of_one_token_still_moves_on() -> None:
    engine = Engine(3, 2, k=3, max_num_batched_tokens=1)
    order = [tokens(engine.step())[0] for _ in range(5)]
    assert order == [(0, 1)] * 5, "the first request is always first"
    assert engine.requests[0].num_emitted_tokens == 3
    assert drafts(engine.step()) == [0]


@pytest.mark.parametrize(
    ("changes", "k", "refused"),
    [
        ({}, 0, False),
        ({"max_model_len": 20}, 0, False),
        ({"max_model_len": 19}, 0, True),
        ({"num_kv_blocks": 5}, 0, False),
        ({"num_kv_blocks": 4}, 0, True),
        ({"num_kv_blocks": 7}, 4, False),
        ({"num_kv_blocks": 6}, 4, True),
        ({"num_kv_blocks": 6, "lookahead_drafts": False}, 4, False),
        ({"num_kv_blocks": 6, "max_model_len": 20}, 4, False),
        ({"num_kv_blocks": 5, "max_model_len": 20}, 4, True),
        ({"num_kv_blocks": 7, "fixed_blocks_per_request": 2}, 0, False),
        ({"num_kv_blocks": 6, "fixed_blocks_per_request": 2}, 0, True),
    ],
)
def test_never_fits(changes: dict[str, Any], k: int, refused: bool) -> None:
    """Prompt 12 and output 8 in blocks of 4: 20 tokens and room for drafts and lookahead."""
    limits = make_limits(**{"num_kv_blocks": 100, "block_size_tokens": 4, **changes})
    assert bool(never_fits(12, 8, limits, k)) is refused


@given(
    prompt=st.integers(1, 40),
    output=st.integers(1, 30),
    k=st.integers(0, 5),
    blocks=st.integers(1, 40),
    length=st.integers(2, 80),
    lookahead=st.booleans(),
    plain=st.booleans(),
)
def test_what_is_not_refused_gets_done_alone(
    prompt: int, output: int, k: int, blocks: int, length: int, lookahead: bool, plain: bool
) -> None:
    limits = make_limits(num_kv_blocks=blocks, block_size_tokens=4, max_model_len=length, lookahead_drafts=lookahead)
    world = World(
        trace=make_trace(prompt_tokens=prompt, output_tokens=output),
        luck=FixedLuck(max_run=3),
        limits=limits,
        policy=PolicySpec("static", k),
    )
    result = run(world, plain=plain)
    assert bool(result.requests.rejected[0]) == never_fits(prompt, output, limits, k)
    assert result.totals.preemptions == 0


@pytest.mark.parametrize(("emitted", "message"), [(0, "emitted 0 tokens with 2 drafts"), (4, "emitted 4 tokens")])
def test_impossible_rounds_are_noticed(emitted: int, message: str) -> None:
    engine = Engine(5, k=2)
    engine.step()
    plan = engine.scheduler.schedule()
    with pytest.raises(InvariantError, match=message):
        engine.scheduler.update(plan, {0: emitted}, set(), lambda request: 0)


def test_a_prompt_emits_one_token_when_it_ends_and_none_before() -> None:
    engine = Engine(30, max_num_batched_tokens=20)
    plan = engine.scheduler.schedule()
    with pytest.raises(InvariantError, match="from its prompt"):
        engine.scheduler.update(plan, {0: 1}, set(), lambda request: 0)


@pytest.mark.parametrize("start", list(State))
@pytest.mark.parametrize("to", list(State))
def test_requests_only_make_moves_of_the_table(start: State, to: State) -> None:
    request = Request(3, 10, state=start)
    if to in MOVES[start]:
        request.move(to)
        assert request.state is to
        return
    with pytest.raises(InvariantError, match="is not a move"):
        request.move(to)
    assert request.state is start


def test_ends_are_final() -> None:
    assert MOVES[State.FINISHED] == MOVES[State.REJECTED] == frozenset()
    assert set(MOVES) == set(State)
