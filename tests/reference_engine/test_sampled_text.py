"""Sampled text follows the target's own law, whoever drafted: chi-square over whole outputs of served requests.

Each test compares the joint law of four tokens, of which the first comes from a prompt and the others from rounds.
A right engine fails one with probability 1e-6; a planted fault must fall below that too.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from builders import make_limits
from scipy import stats

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from planted import heads_of, with_trees_of  # noqa: E402
from served import run_model  # noqa: E402
from tiny import causal_lm  # noqa: E402

from calibrate import rejection  # noqa: E402
from calibrate.drafters import Drafter  # noqa: E402
from calibrate.drafters.base import Planted  # noqa: E402
from calibrate.drafters.draft_model import DraftModelDrafter  # noqa: E402
from calibrate.drafters.feature import FeatureDrafter  # noqa: E402
from calibrate.drafters.layer_skip import LayerSkipDrafter  # noqa: E402
from calibrate.drafters.medusa import MedusaDrafter  # noqa: E402
from calibrate.drafters.ngram import NgramDrafter  # noqa: E402
from calibrate.drafters.planting import DynamicTree, full_tree  # noqa: E402
from calibrate.engine import Sampling, verify  # noqa: E402
from calibrate.models import FlatModel  # noqa: E402
from specsim.config import PolicySpec  # noqa: E402

VOCAB, LENGTH, REQUESTS = 4, 4, 1500
PROMPT = [1, 3, 1, 2, 1]
FALSE_ALARM = 1e-6
IDS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def model(seed: int = 0) -> FlatModel:
    return FlatModel(causal_lm(seed=seed, **IDS), name=f"seed {seed}")


@cache
def heads() -> dict[str, Any]:
    """For the model of four tokens, fitted to what is not its text: often wrong."""
    return heads_of(model(), [[(n * n + 3 * i) % VOCAB for i in range(20)] for n in range(3)])


DRAFTERS = {
    "none": (lambda: None, "greedy"),
    "ngram": (lambda: NgramDrafter(min_tokens=1, max_tokens=2), "greedy"),
    "draft_model": (lambda: DraftModelDrafter(model(seed=1)), "probabilistic"),
    "draft_model drafting greedily": (lambda: DraftModelDrafter(model(seed=1)), "greedy"),
    "layer_skip": (lambda: LayerSkipDrafter(num_layers=1), "probabilistic"),
}
PLAIN = {"temperature": 2.0}
CUT = {"temperature": 1.5, "top_k": 3, "top_p": 0.9}
PLANTED = {
    "drawn": (lambda: FeatureDrafter("eagle", heads()["eagle"], full_tree([2, 2])), "probabilistic", PLAIN),
    "drawn, not always filled": (lambda: MedusaDrafter(heads()["medusa"], full_tree([3, 2])), "probabilistic", CUT),
    "grown": (lambda: FeatureDrafter("eagle2", heads()["eagle"], DynamicTree(5, 2)), "probabilistic", CUT),
}


def true_law(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every output, by transformers alone."""
    alone = causal_lm(**IDS)
    texts = list(product(range(VOCAB), repeat=LENGTH))
    with torch.inference_mode():
        logits = alone(torch.tensor([PROMPT + list(text[:-1]) for text in texts]), use_cache=False).logits
    probs = sampling.law(logits[:, len(PROMPT) - 1 :])
    chances = probs.gather(-1, torch.tensor(texts)[..., None])[..., 0].prod(-1)
    return dict(zip(texts, chances.tolist(), strict=True))


def p_value(drafts_by: Drafter | None, sampling: Sampling, requests: int = REQUESTS) -> float:
    limits = make_limits(max_num_seqs=250)
    if isinstance(drafts_by, Planted):
        limits = with_trees_of(drafts_by, limits, 2)
    served, runner = run_model(
        prompt_tokens=[len(PROMPT)] * requests,
        output_tokens=[LENGTH] * requests,
        prompts=[PROMPT] * requests,
        policy=PolicySpec("static", 2) if drafts_by else PolicySpec("off"),
        limits=limits,
        model=model(),
        drafts_by=drafts_by,
        sampling=sampling,
    )
    if drafts_by:
        totals = served.result.totals
        assert 0 < totals.accepted_tokens < totals.drafted_tokens
    law = true_law(sampling)
    counts = Counter(tuple(runner.output(n)) for n in range(requests))
    assert all(law[text] > 0 for text in counts)
    expected = np.array(list(law.values())) * requests
    seen = np.array([counts[text] for text in law])
    rare = expected < 5
    pooled = np.append(expected[~rare], expected[rare].sum()), np.append(seen[~rare], seen[rare].sum())
    assert (~rare).sum() >= 15, "the guard: the law is spread over many outputs"
    keep = pooled[0] > 0
    return float(stats.chisquare(pooled[1][keep], pooled[0][keep]).pvalue)


@pytest.mark.parametrize("cuts", [PLAIN, CUT], ids=["temperature", "top-k and top-p"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_outputs_follow_the_law_of_the_target(drafter: str, cuts: dict) -> None:
    make, drafts = DRAFTERS[drafter]
    assert p_value(make(), Sampling(**cuts, drafts=drafts, seed=1)) > FALSE_ALARM


@pytest.mark.parametrize("case", PLANTED)
def test_outputs_of_trees_follow_the_law_of_the_target(case: str) -> None:
    make, drafts, cuts = PLANTED[case]
    assert p_value(make(), Sampling(**cuts, drafts=drafts, seed=1), requests=700) > FALSE_ALARM


def test_a_loop_that_accepts_too_much_is_seen() -> None:
    """Guard: drafts accepted although the target hardly wants them."""

    def credulous(target, draft_probs, tokens, *, generator):  # type: ignore[no-untyped-def]
        return rejection.accept(
            (target**0.5) / (target**0.5).sum(-1, keepdim=True), draft_probs, tokens, generator=generator
        )

    make, drafts = DRAFTERS["draft_model"]
    with mock.patch.object(verify, "accept", credulous):
        assert p_value(make(), Sampling(**PLAIN, drafts=drafts, seed=1)) < FALSE_ALARM


def test_trees_that_accept_too_much_are_seen() -> None:
    """Guard: the same, of siblings."""

    def credulous(target, *drafts, generator):  # type: ignore[no-untyped-def]
        return rejection.accept_tree((target**0.5) / (target**0.5).sum(-1, keepdim=True), *drafts, generator=generator)

    make, drafts, cuts = PLANTED["drawn"]
    with mock.patch.object(verify, "accept_tree", credulous):
        assert p_value(make(), Sampling(**cuts, drafts=drafts, seed=1), requests=700) < FALSE_ALARM


def test_a_request_draws_the_same_whoever_runs_beside_it() -> None:
    """Without drafts its text depends on seed and number alone, not on batch or chunks."""
    texts = []
    for limits in (make_limits(max_num_seqs=1), make_limits(max_num_batched_tokens=7)):
        _, runner = run_model(
            prompt_tokens=[5, 9, 7], output_tokens=[6, 6, 6], sampling=Sampling(temperature=1.0, seed=3), limits=limits
        )
        texts.append([runner.output(n) for n in range(3)])
    assert texts[0] == texts[1]
