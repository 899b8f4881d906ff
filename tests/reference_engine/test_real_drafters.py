"""What each drafter proposes, on texts small enough to check by eye or by brute force."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import make_limits
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from served import prompts_of, run_model, target  # noqa: E402
from tiny import causal_lm  # noqa: E402

from calibrate.drafters import NOTHING, Draftee, Proposal  # noqa: E402
from calibrate.drafters.draft_model import DraftModelDrafter  # noqa: E402
from calibrate.drafters.layer_skip import LayerSkipDrafter  # noqa: E402
from calibrate.drafters.ngram import NgramDrafter, lookup  # noqa: E402
from calibrate.drafters.suffix import SuffixDrafter, SuffixTrie  # noqa: E402
from calibrate.models import FlatModel, SlotCache  # noqa: E402
from specsim.config import PolicySpec  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def draftee(tokens: Sequence[int], request: int = 0, *, prompt_tokens: int | None = None) -> Draftee:
    computed = len(tokens) - 1 if prompt_tokens is None else prompt_tokens
    return Draftee(request, tokens, computed, 0, True, torch.Generator())


@pytest.mark.parametrize(
    ("text", "k", "drafts"),
    [
        ([1, 2, 3, 4, 1, 2], 3, [3, 4, 1]),
        ([1, 2, 7, 1, 2, 8, 1, 2], 1, [7]),  # the first place, not the last
        ([5, 1, 2, 7, 4, 1, 2, 8, 4, 1, 2], 1, [8]),  # the longer match, though later
        ([1, 1, 1], 4, [1]),  # the match may reach into the end itself
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([1, 2, 3, 1, 2], 0, []),
    ],
)
def test_what_followed_the_longest_match_first(text: list[int], k: int, drafts: list[int]) -> None:
    assert lookup(text, k, min_tokens=1, max_tokens=3) == drafts


def test_a_match_shorter_than_asked_for_is_none() -> None:
    assert lookup([1, 2, 3, 4, 9, 2], 3, min_tokens=2, max_tokens=3) == []
    assert lookup([1, 2, 3, 4, 1, 2], 3, min_tokens=2, max_tokens=3) == [3, 4, 1]


@given(text=TEXTS, k=st.integers(0, 5), low=st.integers(1, 3), more=st.integers(0, 3))
def test_lookup_is_the_search_that_it_says(text: list[int], k: int, low: int, more: int) -> None:
    """By brute force: longest n-gram first, then from the left."""
    found: list[int] = []
    for n in range(low + more, low - 1, -1):
        places = [i for i in range(len(text) - n) if text[i : i + n] == text[len(text) - n :]]
        if places:
            found = text[places[0] + n : places[0] + n + k]
            break
    assert lookup(text, k, min_tokens=low, max_tokens=low + more) == found


@given(texts=st.lists(TEXTS, min_size=1, max_size=3), cut=st.integers(0, 30), taken=st.booleans())
def test_a_trie_counts_every_stretch(texts: list[list[int]], cut: int, taken: bool) -> None:
    trie = SuffixTrie(4)
    for text in texts:
        trie.extend(text[:cut], 0)
        trie.extend(text, len(text[:cut]))
    if taken:
        trie.remove(texts.pop(0))
    expected: dict[tuple[int, ...], int] = {}
    for text in texts:
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + 4) + 1):
                key = tuple(text[start:end])
                expected[key] = expected.get(key, 0) + 1

    def counted(node, path: tuple[int, ...]) -> dict[tuple[int, ...], int]:  # type: ignore[no-untyped-def]
        found = {}
        for token, child in node.children.items():
            found |= {(*path, token): child.count} | counted(child, (*path, token))
        return found

    assert counted(trie._root, ()) == expected


def test_suffix_drafts_are_the_most_frequent_and_as_long_as_the_match() -> None:
    drafter = SuffixDrafter(depth=8)
    text = [1, 2, 3, 5, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3]
    assert drafter.propose([draftee(text)], 8, None) == [Proposal((5, 1, 2))]
    assert drafter.propose([draftee(text)], 2, None) == [Proposal((5, 1))]
    assert drafter.propose([draftee([7, 8, 9], 1)], 8, None) == [NOTHING]


def test_suffix_drafts_come_from_past_responses_until_those_are_forgotten() -> None:
    drafter = SuffixDrafter(depth=8, max_responses=1)
    first = [8, 9, 1, 2, 3, 4]
    drafter.propose([draftee(first[:3], 0, prompt_tokens=2)], 4, None)
    drafter.release(0, first)
    assert drafter.propose([draftee([5, 1, 2], 1)], 4, None) == [Proposal((3, 4))]
    assert drafter.propose([draftee([5, 8], 2)], 4, None) == [NOTHING], "the prompt is not a response"
    drafter.propose([draftee([6, 7], 3, prompt_tokens=1)], 4, None)
    drafter.release(3, [6, 7, 7, 7])
    drafter.release(1, None)
    assert drafter.propose([draftee([5, 1, 2], 4)], 4, None) == [NOTHING]


def test_a_draft_that_is_unlikely_is_not_proposed() -> None:
    text = [1, 2, 1, 3, 1, 4, 1]
    assert SuffixDrafter(min_probability=0.5).propose([draftee(text)], 4, None) == [NOTHING]
    assert SuffixDrafter(min_probability=0.3).propose([draftee(text)], 4, None) == [Proposal((2,))]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NgramDrafter(min_tokens=3, max_tokens=2), "1 <= min_tokens <= max_tokens, got 3 and 2"),
        (lambda: SuffixDrafter(depth=1), "depth >= 2"),
        (lambda: LayerSkipDrafter(num_layers=3).start(target(), SlotCache(1, 1)), "its first layers are 1 to 2"),
        (
            lambda: DraftModelDrafter(FlatModel(causal_lm(vocab_size=60), name="other")).start(
                target(), SlotCache(1, 1)
            ),
            "draft model other has 60 tokens in its vocabulary and target target 61",
        ),
    ],
)
def test_a_drafter_that_cannot_work_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ScenarioError, match=message):
        make()


def test_a_draft_model_computes_every_token_once() -> None:
    """Its passes: prompts in the target's chunks, one token a draft, and one more after full acceptance."""
    passes: list[int] = []

    class Counting(FlatModel):
        def run(self, token_ids, positions, plan):  # type: ignore[no-untyped-def]
            passes.append(token_ids.shape[1])
            return super().run(token_ids, positions, plan)

    served, _ = run_model(
        prompt_tokens=[20],
        output_tokens=[9],
        drafts_by=DraftModelDrafter(Counting(causal_lm(), name="same")),
        limits=make_limits(max_num_batched_tokens=8),
        policy=PolicySpec("static", 3),
    )
    assert [r.emitted for r in served.rounds] == [4, 4]
    assert passes == [8, 8, 4 + 1, 1, 1, 2, 1, 1]


class Listening:
    """A drafter that proposes nothing and keeps what it was shown of the target's hidden states."""

    name = "listening"
    hidden_layers = (0, 2)

    def __init__(self) -> None:
        self.seen: dict[int, list[torch.Tensor]] = {}

    def start(self, target: FlatModel, cache: SlotCache) -> None: ...

    def propose(self, draftees: Sequence[Draftee], k: int, law: object) -> list[Proposal]:
        for d in draftees:
            if d.computed_tokens == len(d.hidden[0]):
                self.seen[d.request] = []  # from the beginning, again after a preemption
            self.seen[d.request].append(torch.stack(d.hidden))
        return [Proposal((5, 6)) if d.drafts and k else NOTHING for d in draftees]

    def release(self, request: int, finished: Sequence[int] | None) -> None: ...


def test_a_head_is_shown_the_hidden_states_of_what_was_kept() -> None:
    """Of prompts in chunks, of rounds with rejected drafts, and again after a preemption."""
    drafter = Listening()
    limits = make_limits(max_num_batched_tokens=7, num_kv_blocks=24, block_size_tokens=2)
    served, runner = run_model(
        prompt_tokens=[9, 12, 6],
        output_tokens=[14, 9, 12],
        drafts_by=drafter,
        limits=limits,
        policy=PolicySpec("static", 2),
    )
    assert served.result.requests.preemptions.sum() > 0
    alone = causal_lm()
    for n, prompt in enumerate(prompts_of([9, 12, 6])):
        kept = torch.cat(drafter.seen[n], 1)
        tokens = [*prompt, *runner.output(n)][: kept.shape[1]]
        assert len(tokens) >= len(prompt) + 6
        with torch.inference_mode():
            out = alone(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
        # transformers lists the embedding first, and the last layer behind the norm
        torch.testing.assert_close(kept[0], out[3][0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(kept[1], out[1][0], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(alone.model.norm(kept[2]), out[3][0], rtol=1e-4, atol=2e-5)
