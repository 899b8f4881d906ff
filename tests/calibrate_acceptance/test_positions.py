"""Drafts at every position of a known text give the rounds that the reference engine really runs, at any k."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")
sys.path.insert(0, str(Path(__file__).parent.parent / "reference_engine"))

from served import DRAFTERS, near_target, prompts_of, run_model, target  # noqa: E402

from calibrate.acceptance.job import rounds_on_text  # noqa: E402
from calibrate.acceptance.positions import (  # noqa: E402
    ChainPositions,
    NgramPositions,
    leading_matches,
    runs_of_choices,
)
from calibrate.acceptance.prompts import Prompt  # noqa: E402
from calibrate.acceptance.rounds import Finished, run_rounds  # noqa: E402
from calibrate.drafters.suffix import SuffixDrafter, SuffixTrie  # noqa: E402
from calibrate.engine import Sampling  # noqa: E402
from specsim.config import PolicySpec  # noqa: E402

PROMPT_TOKENS, OUTPUT_TOKENS, K_MAX = [12, 20, 9, 16], [40, 33, 48, 25], 12
POSITIONS: dict[str, Callable[[], ChainPositions | NgramPositions]] = {
    "ngram": lambda: NgramPositions(min_tokens=1, max_tokens=3),
    "draft_model": lambda: ChainPositions(near_target(0.02), longest=80),
    "layer_skip": lambda: ChainPositions(target().first_layers(2), longest=80),
    "itself": lambda: ChainPositions(near_target(0.0), longest=80),
}


def requests() -> list[tuple[int, Prompt]]:
    prompts = prompts_of(PROMPT_TOKENS)
    return [(n, Prompt(n, "", tuple(p), most)) for n, (p, most) in enumerate(zip(prompts, OUTPUT_TOKENS, strict=True))]


def texts() -> dict[int, Finished]:
    return {one.number: one for one in run_rounds(target(), requests(), stops=(), batch=3)}


def replayed(run: np.ndarray, drafts: np.ndarray | None, k: int, length: int) -> list[tuple[int, int, int]]:
    """(position, drafts, tokens emitted) of rounds at a static k, the first token coming with the prompt."""
    found, position = [], 1
    while position < length:
        drafted = k if drafts is None else min(k, int(drafts[position]))
        emitted = min(int(run[position]) + 1, k + 1, length - position)
        found.append((position, drafted, emitted))
        position += emitted
    return found


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("method", POSITIONS)
def test_rounds_from_positions_are_the_engines_rounds(method: str, k: int) -> None:
    drafting = POSITIONS[method]()
    served, runner = run_model(
        prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, drafter=method, policy=PolicySpec("static", k)
    )
    accepted = 0
    for n, one in texts().items():
        assert one.output == list(runner.output(n)), "the texts are the same"
        found = drafting.runs(prompts_of(PROMPT_TOKENS)[n], one.output, K_MAX)
        real = [(r.position, r.drafted, r.emitted) for r in served.rounds if r.request == n]
        assert replayed(found.run, found.drafts, k, len(one.output)) == real
        accepted += sum(emitted - 1 for _, _, emitted in real)
    assert accepted > 5, "the guard: something is accepted"


@pytest.mark.parametrize("method", ["ngram", "draft_model", "layer_skip"])
def test_positions_hold_for_every_k_that_rounds_are_run_at(method: str) -> None:
    """The same by the rounds of this package, which start at position 0, for k up to the largest."""
    drafting, known = POSITIONS[method](), texts()
    for k in (2, 7, K_MAX):
        for one in run_rounds(target(), requests(), stops=(), batch=2, drafter=DRAFTERS[method](), k=k):
            prompt = prompts_of(PROMPT_TOKENS)[one.number]
            assert one.output == known[one.number].output
            found = drafting.runs(prompt, one.output, K_MAX)
            starts = np.cumsum([0, *one.emitted[:-1]])
            wanted = np.minimum(np.minimum(found.run[starts], k) + 1, len(one.output) - starts)
            assert one.emitted == wanted.tolist()
            if found.drafts is not None:
                assert one.drafted == np.minimum(found.drafts[starts], k).tolist()


@pytest.mark.parametrize("k", [1, 4])
def test_lookups_on_a_known_text_are_the_rounds_that_would_be_run(k: int) -> None:
    """Suffix decoding one request after another: with the model, and against the text alone."""
    with_model, alone = (SuffixDrafter(depth=8, min_probability=0.1) for _ in range(2))
    for one in run_rounds(target(), requests(), stops=(), batch=1, drafter=with_model, k=k):
        prompt = prompts_of(PROMPT_TOKENS)[one.number]
        assert rounds_on_text(alone, one.number, prompt, one.output, k) == (one.emitted, one.drafted)
        assert sum(one.emitted) == len(one.output) == OUTPUT_TOKENS[one.number]


def test_suffix_decoding_proposes_other_drafts_when_it_is_asked_for_fewer() -> None:
    """Why it is measured by round: its draft for k = 1 need not be the first of those for k = 4."""
    trie, text = SuffixTrie(depth=6), [0, 1, 1, 0, 1, 1, 1, 2, 2, 1, 2, 2, 1, 1]
    trie.extend(text, 0)
    one, four = (trie.propose(text, k, factor=1.0, min_probability=0.1)[0] for k in (1, 4))
    assert (one, four) == ([1], [0, 1])


def test_a_text_ends_with_its_stop_token_inside_a_round_too() -> None:
    known = texts()
    stop = known[0].output[7]
    ends = {n: one.output.index(stop) + 1 if stop in one.output else len(one.output) for n, one in known.items()}
    for drafter, k in ((None, 0), (DRAFTERS["itself"](), 5)):
        for one in run_rounds(target(), requests(), stops=(stop,), batch=4, drafter=drafter, k=k):
            assert one.output == known[one.number].output[: ends[one.number]]
            assert sum(one.emitted) == len(one.output)


@pytest.mark.parametrize("method", ["ngram", "draft_model", "layer_skip"])
def test_sampled_rounds_do_not_depend_on_the_batch(method: str) -> None:
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.95, drafts="probabilistic", seed=5)
    runs = []
    for batch in (1, 3):
        found = run_rounds(
            target(), requests(), stops=(2,), batch=batch, drafter=DRAFTERS[method](), k=3, sampling=sampling
        )
        runs.append(sorted((one.number, one.output, one.emitted, one.drafted) for one in found))
    assert runs[0] == runs[1]
    other = run_rounds(target(), requests(), stops=(2,), batch=1, sampling=Sampling(temperature=0.8, seed=6))
    assert [one.output for one in other] != [output for _, output, _, _ in runs[0]]


def test_runs_of_choices() -> None:
    assert runs_of_choices([True, True, False, True, True, True], 2).tolist() == [2, 1, 0, 2, 2, 1]
    assert leading_matches([1, 2, 3], [1, 2, 4]) == 2
    assert leading_matches([1, 2, 3], [1, 2]) == 2
    assert leading_matches([], [1]) == 0
