"""Trees of drafts served for real: the text is the target's, and the simulator goes through the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from builders import make_limits, make_profile, make_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import RULES, World

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from alike import assert_simulated_exactly  # noqa: E402
from planted import PATHS, PLANTED, PROMPTS, with_trees_of  # noqa: E402
from served import greedy_text, prompts_of, run_model, target  # noqa: E402
from tiny import VOCAB, causal_lm  # noqa: E402

from calibrate.drafters import NOTHING, Draftee, Proposal  # noqa: E402
from calibrate.drafters.medusa import MedusaDrafter, MedusaHeads  # noqa: E402
from calibrate.drafters.ngram import NgramDrafter  # noqa: E402
from calibrate.drafters.planting import DynamicTree, full_tree  # noqa: E402
from calibrate.engine import ModelRunner, Served, VirtualClock, serve  # noqa: E402
from calibrate.engine.real import serve_real  # noqa: E402
from calibrate.engine.replay import MeasuredSteps, recorded_rounds  # noqa: E402
from calibrate.models import FlatBatch, FlatModel, SlotCache  # noqa: E402
from specsim.config import PolicySpec, ReplicaLimits  # noqa: E402
from specsim.disciplines import STATIC, VLLM, Discipline  # noqa: E402
from specsim.engine.simulator import simulate  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402
from specsim.policies import parse_policy  # noqa: E402
from specsim.trees import Tree, cut, grown_tree  # noqa: E402
from specsim.workload import Workload  # noqa: E402

OUTPUTS = [18, 15, 22, 8, 1, 20]
SETTINGS: dict[str, dict[str, Any]] = {
    "together": {},
    "one at a time": {"max_num_seqs": 1},
    "chunks of a few tokens": {"max_num_batched_tokens": 17},
    "preempted": {"num_kv_blocks": 50, "block_size_tokens": 2, "max_num_seqs": 5},
    "at the end of the model's length": {"max_model_len": 29},
}
POLICIES = [
    PolicySpec("static", 3),
    PolicySpec("static", 1),
    parse_policy("schedule:1-2=3,3-4=2,5-9=0"),
    PolicySpec("off_above", 3, batch_limit=2),
    parse_policy("gate:3:0.5:window=2:reprobe_steps=3"),
]


def expected() -> list[list[int]]:
    return [greedy_text(prompt, n) for prompt, n in zip(prompts_of(PROMPTS), OUTPUTS, strict=True)]


def some(first: Any, second: Any) -> Any:
    """Every other pair, so that each meets many of the others."""
    return [(a, b) for n, a in enumerate(first) for m, b in enumerate(second) if (n + m) % 2 == 0]


@pytest.mark.parametrize(("setting", "case"), some(SETTINGS, PLANTED))
def test_the_text_is_that_of_transformers_alone(setting: str, case: str) -> None:
    drafter = PLANTED[case]()
    served, runner = run_model(
        prompt_tokens=PROMPTS,
        output_tokens=OUTPUTS,
        drafts_by=drafter,
        limits=with_trees_of(drafter, make_limits(**SETTINGS[setting]), 3),
    )
    rejected = served.result.requests.rejected
    for n, text in enumerate(expected()):
        assert runner.output(n) == ([] if rejected[n] else text)
    at_the_end = setting.startswith("at the end")
    assert rejected.sum() == (1 if at_the_end else 0)
    if setting == "preempted":
        assert served.result.requests.preemptions.sum() > 0
    assert 5 < served.result.totals.accepted_tokens < served.result.totals.drafted_tokens
    assert max(r.emitted for r in served.rounds) >= 3, "the guard: branches are accepted"
    if at_the_end:
        assert {r.drafted for r in served.rounds} & {1, 2}, "the guard: trees are cut"


@st.composite
def _served(draw: st.DrawFn) -> tuple[World, Any, list[list[int]]]:
    """A world whose luck is still to be made, its drafter, and its prompts."""
    n = draw(st.integers(2, 8))
    prompts = draw(st.lists(st.sampled_from(prompts_of(PROMPTS)), min_size=n, max_size=n))
    outputs = draw(st.lists(st.sampled_from([1, 7, 15, 20, 24]), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.03]), min_size=n, max_size=n))
    case, policy = draw(st.sampled_from([*PLANTED])), draw(st.sampled_from(POLICIES))
    drafter, k = PLANTED[case](), policy.num_spec_tokens
    trees = drafter.trees(k)
    if case == "eagle grown" and k == 3 and draw(st.booleans()):
        trees = cut(grown_tree((0.6,), nodes=9, topk=3, depth=3)[0])  # as the simulator plants it
    limits = make_limits(
        discipline=draw(st.sampled_from(RULES)),
        max_num_seqs=draw(st.sampled_from([5, 3, 1])),
        max_num_batched_tokens=draw(st.sampled_from([80, 200, 24])),
        num_kv_blocks=draw(st.sampled_from([36, 44, 52, 500])),
        block_size_tokens=2,
        max_model_len=draw(st.sampled_from([45, 39, 60])),
        enable_prefix_caching=False,
    )
    world = World(
        trace=make_trace(
            arrival_s=np.cumsum(gaps).tolist(), prompt_tokens=[len(p) for p in prompts], output_tokens=outputs
        ),
        limits=replace(with_trees_of(drafter, limits, k), tree_nodes=(0, *(tree.nodes for tree in trees))),
        policy=policy,
        trees=trees,
        concurrency=draw(st.sampled_from([None, None, 2])),
    )
    return world, drafter, prompts


def _run(world: World, drafter: Any, prompts: Sequence[Sequence[int]]) -> tuple[Served, ModelRunner, World]:
    """A real run in virtual time, and the world with the luck that it had."""
    workload = Workload(world.trace, None, seed=world.seed)
    runner = ModelRunner(
        target(), prompts, workload, world.limits, drafter=drafter, num_spec_tokens=world.policy.num_spec_tokens
    )
    served = serve(
        workload, runner, VirtualClock(world.cost), limits=world.limits, policy=world.policy, cost=world.cost,
        concurrency=world.concurrency,
    )  # fmt: skip
    return served, runner, replace(world, luck=recorded_rounds(served, workload))


@settings(max_examples=20, deadline=None)
@given(_served())
def test_a_real_run_with_trees_is_simulated_step_by_step(drawn: tuple[World, Any, list[list[int]]]) -> None:
    """Over random traces, disciplines, policies and memory sizes: the same steps, and times to 1e-9 s."""
    served, runner, world = _run(*drawn)
    for n, prompt in enumerate(drawn[2]):
        length = int(world.trace.output_tokens[n])
        wanted = [] if served.result.requests.rejected[n] else greedy_text(prompt, length)
        assert runner.output(n) == wanted
    assert_simulated_exactly(served, world)


LISTED: dict[str, Discipline] = {
    "vllm": VLLM,
    "leaving": replace(VLLM, extra_step=True),
    "placeholders": replace(VLLM, first_round_placeholders=True),
    "padding": STATIC,
}


@pytest.mark.parametrize(("name", "case"), some(LISTED, ["eagle full", "eagle grown", "medusa paths", "lookahead"]))
def test_what_a_pass_computes_is_what_is_counted(name: str, case: str) -> None:
    """Whole trees, those that a drafter could not fill and those of nobody included."""
    drafter, rules = PLANTED[case](), LISTED[name]
    limits = make_limits(discipline=rules, max_model_len=64, max_num_seqs=4, enable_prefix_caching=False)
    world = World(
        trace=make_trace(arrival_s=[n * 0.03 for n in range(6)], prompt_tokens=PROMPTS, output_tokens=OUTPUTS),
        limits=with_trees_of(drafter, limits, 3),
        policy=parse_policy("schedule:1-2=3,3-9=2") if rules is VLLM else PolicySpec("static", 3),
        trees=drafter.trees(3),
    )
    widths: list[int] = []

    def seen(model: FlatModel, batch: FlatBatch, *more: Any) -> Any:
        widths.append(len(batch.token_ids))
        return whole(model, batch, *more)

    whole = FlatModel.forward_keeping
    with mock.patch.object(FlatModel, "forward_keeping", seen):
        served, _, _ = _run(world, drafter, prompts_of(PROMPTS))
    works = [step.work for step in served.steps]
    assert widths == [
        work.decode_requests
        + world.limits.verified_tokens(work.draft_tokens, work.draft_requests)
        + work.prefill_tokens
        for work in works
    ]
    assert any(work.draft_requests for work in works)


class Knowing:
    """A drafter that knows the text, and hides it in its trees; it keeps the hidden states that it is shown."""

    name = "knowing"
    hidden_layers = (0, 2)

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = texts
        self.seen: dict[int, list[torch.Tensor]] = {}

    def trees(self, k: int) -> tuple[Tree, ...]:
        return cut(Tree((2, 2), (1, 1)))[:k]

    def start(self, target: FlatModel, cache: SlotCache) -> None: ...

    def propose(self, draftees: Sequence[Draftee], k: int, law: object) -> list[Proposal]:
        for d in draftees:
            if d.computed_tokens == len(d.hidden[0]):
                self.seen[d.request] = []  # from the beginning, again after a preemption
            self.seen[d.request].append(torch.stack(d.hidden))
        return [self._draft(d) if d.drafts and k else NOTHING for d in draftees]

    def _draft(self, d: Draftee) -> Proposal:
        first, second = [*self._texts[d.request][len(d.tokens) :], 3, 3][:2]
        return Proposal(((first + 1) % VOCAB, first, (second + 1) % VOCAB, second), None, (-1, -1, 1, 1))

    def release(self, request: int, finished: Sequence[int] | None) -> None: ...


def test_keys_values_and_hidden_states_are_those_of_the_branch_that_is_kept() -> None:
    """A head is shown them in order, through chunks and preemptions; no round ends before its text does."""
    lengths, outputs = [9, 12, 6], [14, 9, 12]
    prompts = prompts_of(lengths)
    texts = [[*prompt, *greedy_text(prompt, n)] for prompt, n in zip(prompts, outputs, strict=True)]
    drafter = Knowing(texts)
    limits = make_limits(max_num_batched_tokens=15, num_kv_blocks=30, block_size_tokens=2)
    served, runner = run_model(
        prompt_tokens=lengths, output_tokens=outputs, drafts_by=drafter, policy=PolicySpec("static", 2),
        limits=with_trees_of(drafter, limits, 2),
    )  # fmt: skip
    assert served.result.requests.preemptions.sum() > 0
    last = {r.request: n for n, r in enumerate(served.rounds)}
    assert all(r.emitted == 3 for n, r in enumerate(served.rounds) if n != last[r.request])
    alone = causal_lm()
    for n, text in enumerate(texts):
        assert [*prompts[n], *runner.output(n)] == text
        kept = torch.cat(drafter.seen[n], 1)
        assert kept.shape[1] >= lengths[n] + 6
        with torch.inference_mode():
            ids = torch.tensor([text[: kept.shape[1]]])
            out = alone(ids, use_cache=False, output_hidden_states=True).hidden_states
        # transformers lists the embedding first, and the last layer behind the norm
        torch.testing.assert_close(kept[0], out[3][0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(kept[1], out[1][0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(alone.model.norm(kept[2]), out[3][0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", ["eagle full", "eagle grown", "lookahead"])
def test_a_run_in_real_time_is_simulated_step_by_step(case: str) -> None:
    """Whatever this machine does meanwhile; what is measured of a step is its own."""
    drafter, policy = PLANTED[case](), PolicySpec("static", 3)
    rng = np.random.default_rng(1)
    trace = make_trace(
        arrival_s=np.cumsum(rng.exponential(0.012, 12)).tolist(),
        prompt_tokens=PROMPTS * 2,
        output_tokens=rng.integers(2, 25, 12).tolist(),
    )
    workload, trees = Workload(trace, None, seed=0), drafter.trees(3)
    limits = with_trees_of(
        drafter, make_limits(max_num_seqs=4, max_num_batched_tokens=70, num_kv_blocks=80, block_size_tokens=2), 3
    )
    served, _ = serve_real(target(), prompts_of(PROMPTS) * 2, workload, limits=limits, policy=policy, drafter=drafter)
    steps = MeasuredSteps(served, make_profile(), trees)
    again = simulate(Workload(trace, recorded_rounds(served, workload), seed=0), steps, limits=limits, policy=policy)
    assert steps.unmatched == 0
    for name in ("steps", "rounds", "drafted_tokens", "accepted_tokens", "prefill_tokens", "preemptions", "k_steps"):
        assert getattr(served.result.totals, name) == getattr(again.totals, name), name
    assert again.end_s == pytest.approx(served.result.end_s, rel=1e-6)


def _medusa(planting: Any, count: int = 3) -> MedusaDrafter:
    draws = torch.Generator().manual_seed(2)
    size = target().config.hidden_size
    heads = [([], torch.randn(VOCAB, size, generator=draws, dtype=target().dtype)) for _ in range(count)]
    return MedusaDrafter(MedusaHeads(heads), planting)


def _limits(*nodes: int) -> ReplicaLimits:
    return make_limits(tree_nodes=nodes, enable_prefix_caching=False)


@pytest.mark.parametrize(
    ("drafter", "limits", "message"),
    [
        (lambda: _medusa(PATHS), make_limits(), "medusa drafts trees of up to 8 tokens, and limits without tree_nodes"),
        (lambda: _medusa(PATHS), _limits(0, 3, 6, 9), r"tree_nodes \[0, 3, 6, 9\] are not the trees of medusa, which "
                                                       r"has \[0, 3, 6, 8\] drafts on 0 to 3 levels"),
        (lambda: _medusa(PATHS), _limits(0, 4, 6, 8), "are not the trees of medusa"),
        (lambda: _medusa(PATHS), _limits(0, 3, 6), r"\[0, 3, 6\] say what up to 2 levels verify, and k is 3"),
        (lambda: _medusa(PATHS, 2), _limits(0, 3, 6, 8), "medusa drafts trees of 2 levels, fewer than k 3; lower k"),
        (lambda: _medusa(DynamicTree(2, 2)), _limits(0, 2, 2, 2), "trees of 2 tokens, too few for k 3 levels"),
        (NgramDrafter, _limits(0, 3, 6, 8), r"are not the trees of ngram, which has \[0, 1, 2, 3\] drafts"),
    ],
)  # fmt: skip
def test_trees_that_limits_and_drafter_do_not_share_are_refused(drafter: Any, limits: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        run_model(prompt_tokens=[9], output_tokens=[6], drafts_by=drafter(), limits=limits)


def test_trees_of_one_child_a_node_are_served_as_chains() -> None:
    for limits in (make_limits(), _limits(0, 1, 2, 3)):
        _, runner = run_model(
            prompt_tokens=[9], output_tokens=[6], drafts_by=_medusa(full_tree([1, 1, 1])), limits=limits
        )
        assert runner.output(0) == greedy_text(prompts_of([9])[0], 6)


def test_a_policy_that_trims_chains_is_refused_with_trees() -> None:
    drafter, trace = PLANTED["eagle full"](), make_trace(prompt_tokens=9, output_tokens=6)
    limits = with_trees_of(drafter, make_limits(), 3)
    with pytest.raises(ScenarioError, match="trims chains of drafts, and drafts form trees here"):
        serve_real(
            target(), prompts_of([9]), Workload(trace, None, seed=0), limits=limits, policy=parse_policy("budget:3"),
            drafter=drafter,
        )  # fmt: skip


def test_the_best_drafts_of_the_first_levels_are_kept() -> None:
    """In their order, each with the draft that it follows, and with the laws that they were drawn from."""
    laws = torch.eye(6, dtype=torch.float64)
    tree = Proposal((10, 11, 12, 13, 14, 15), laws, (-1, 0, -1, 1, 2, 0))
    assert (tree.depths, tree.levels) == ([1, 2, 1, 3, 2, 2], 3)
    assert tree.first(3) is tree
    two = tree.first(2, 4)
    assert (two.tokens, two.parents) == ((10, 11, 12, 14), (-1, 0, -1, 2))
    assert two.probs is not None and torch.equal(two.probs, laws[[0, 1, 2, 4]])
    assert not tree.first(0).tokens
    assert Proposal((1, 2, 3)).first(2) == Proposal((1, 2))
    assert Proposal((1, 2), drafted_levels=5).levels == 5


def test_grown_trees_list_their_drafts_by_what_their_branches_are_worth() -> None:
    """So that the first of them are the best tree of that size; they count as the levels that were drafted."""
    drafter = _medusa(DynamicTree(5, 3))
    found: list[Proposal] = []

    def kept(draftees: Any, k: int, law: Any) -> list[Proposal]:
        proposals = whole(draftees, k, law)
        found.extend(p for p in proposals if p.tokens)
        return proposals

    whole = drafter.propose
    with mock.patch.object(drafter, "propose", kept):
        served, runner = run_model(
            prompt_tokens=PROMPTS,
            output_tokens=OUTPUTS,
            drafts_by=drafter,
            limits=with_trees_of(drafter, make_limits(), 3),
        )
    assert [runner.output(n) for n in range(6)] == expected()
    assert all(p.levels == 3 and len(p.tokens) == 5 for p in found)
    assert {r.drafted for r in served.rounds} == {3}
    assert min(p.depth for p in found) < 3, "the guard: some are less deep"
    assert len({p.parents for p in found}) > 3, "the guard: shapes follow the text"
    assert any(sorted(p.depths) != p.depths for p in found)
    assert [tree.nodes for tree in drafter.trees(3)] == [3, 5, 5]
    assert asdict(drafter.trees(1)[0]) == {"levels": (3,), "expanded": (1,)}
