"""Rounds with trees on real models: the text is the target's, whatever drafts; what positions say is what rounds do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")
sys.path.insert(0, str(Path(__file__).parent.parent / "reference_engine"))

from served import greedy_text, prompts_of, target  # noqa: E402
from tiny import causal_lm, reference_logits  # noqa: E402
from tiny_heads import save_eagle, save_eagle3, save_medusa, save_mtp  # noqa: E402

from calibrate.acceptance.methods import HEADS, Method, build_method  # noqa: E402
from calibrate.acceptance.prompts import Prompt  # noqa: E402
from calibrate.acceptance.rounds import Finished, run_rounds  # noqa: E402
from calibrate.drafters import Draftee  # noqa: E402
from calibrate.drafters.lookahead import LookaheadDrafter  # noqa: E402
from calibrate.drafters.planting import CHAIN, StaticTree, full_tree  # noqa: E402
from calibrate.engine import Sampling  # noqa: E402
from calibrate.engine.verify import stream  # noqa: E402
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402

PROMPT_TOKENS, OUTPUT_TOKENS = [12, 20, 9], [30, 26, 34]
PATHS = StaticTree({(): 3, (0,): 2, (1,): 1, (0, 0): 2, (0, 0, 0): 1}, "some paths")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("heads")
    prompts = prompts_of(PROMPT_TOKENS)
    texts = [[*p, *greedy_text(p, n)] for p, n in zip(prompts, OUTPUT_TOKENS, strict=True)]
    eagle = save_eagle(home / "eagle", target(), texts, speculators_form=False)
    return {
        "medusa": save_medusa(home / "medusa", target(), texts, project_form=False),
        "eagle": eagle,
        "eagle2": eagle,
        "eagle3": save_eagle3(home / "eagle3", target(), texts, speculators_form=False),
        "mtp": save_mtp(home / "mtp", target(), texts, form="qwen"),
    }


CASES: dict[str, tuple[str, StaticTree | None, dict[str, float]]] = {
    "medusa paths": ("medusa", PATHS, {}),
    "eagle full": ("eagle", full_tree([3, 2, 1]), {}),
    "eagle3 paths": ("eagle3", PATHS, {}),
    "mtp full": ("mtp", full_tree([2, 2]), {}),
    "eagle2": ("eagle2", None, {"nodes": 9, "topk": 3}),
    "eagle3 grown": ("eagle3", None, {"nodes": 12, "topk": 4}),
    "lookahead": ("lookahead", None, {"window": 5, "guesses": 4}),
    "lookahead with the prompt": ("lookahead", None, {"window": 3, "guesses": 4, "from_prompt": 1}),
}


def method(case: str, folders: dict[str, Path], model: FlatModel | None = None) -> Method:
    name, tree, options = CASES[case]
    draft = HEADS[name](folders[name], model or target()) if name in HEADS else None
    return build_method(name, model or target(), draft, options, planting=tree or CHAIN)


def requests() -> list[tuple[int, Prompt]]:
    prompts = [(n, Prompt(n, "", tuple(p), OUTPUT_TOKENS[n])) for n, p in enumerate(prompts_of(PROMPT_TOKENS))]
    return [*prompts, (3, Prompt(3, "", (7,), 9))]


def rounds(own: Method, k: int, batch: int = 3) -> list[Finished]:
    return list(run_rounds(target(), requests(), stops=(), batch=batch, drafter=own.drafter(), k=k))


@pytest.mark.parametrize("case", CASES)
def test_greedy_text_is_the_targets_and_trees_accept_more(case: str, folders: dict[str, Path]) -> None:
    own, accepted = method(case, folders), 0
    for one in rounds(own, 3):
        assert one.output == greedy_text(list(requests()[one.number][1].token_ids), len(one.output))
        assert all(emitted <= drafted + 1 for emitted, drafted in zip(one.emitted, one.drafted, strict=True))
        assert max(one.drafted) <= 3
        accepted += len(one.output) - len(one.emitted)
    assert accepted > 5, "the guard: something is accepted"
    name, tree, _ = CASES[case]
    if tree is not None and tree.deepest >= 3:
        chain = build_method(name, target(), HEADS[name](folders[name], target()), {})
        alone = sum(len(one.output) - len(one.emitted) for one in rounds(chain, 3))
        assert accepted >= alone, "the chain is a branch of the tree"


@pytest.mark.parametrize("case", [case for case, (_, tree, _) in CASES.items() if tree])
def test_rounds_over_static_trees_are_known_by_position(case: str, folders: dict[str, Path]) -> None:
    own = method(case, folders)
    assert own.positions is not None
    drafting = own.positions(80)
    for k in (1, 2, 4):
        for one in rounds(own, k, batch=2):
            found = drafting.runs(requests()[one.number][1].token_ids, one.output, 4)
            assert found.drafts is not None or CASES[case][1].deepest == 4  # type: ignore[union-attr]
            starts = np.cumsum([0, *one.emitted[:-1]])
            wanted = np.minimum(np.minimum(found.run[starts], k) + 1, len(one.output) - starts)
            assert one.emitted == wanted.tolist()


def test_trees_that_depend_on_probabilities_or_history_are_measured_by_round(folders: dict[str, Path]) -> None:
    for case in ("eagle2", "eagle3 grown", "lookahead"):
        assert method(case, folders).positions is None
    with pytest.raises(ScenarioError, match="eagle2 has the tree 2x2, and options nodes and topk for another"):
        build_method("eagle2", target(), HEADS["eagle2"](folders["eagle2"], target()), {}, planting=full_tree([2, 2]))


def test_the_window_of_lookahead_is_what_the_target_says_step_by_step() -> None:
    """Every column of every step, against transformers on the text that the column stands for; and the n-grams."""
    alone, model, k = causal_lm(), target(), 3
    drafter, cache = LookaheadDrafter(window=4, guesses=6), SlotCache(1, 80)
    drafter.start(model, cache)
    slot, prompt = cache.acquire(), prompts_of([9])[0]
    text = [*prompt, *greedy_text(prompt, 8)]
    kept: dict[int, list[tuple[int, ...]]] = {}
    before: list[list[int]] = []
    for known in range(9, 15):
        start = cache.committed[slot]
        model.forward(FlatBatch(text[start : known - 1], [Part(slot, start, known - 1 - start)]), cache)
        cache.commit(slot, known - 1)
        draftee = Draftee(0, text[:known], known - 1, slot, True, stream(Sampling(), 0))
        drafter.propose([draftee], k, None)
        levels = drafter._windows[0].levels
        said = levels[-1]
        if before:
            width = len(before[0])
            new = [
                int(
                    reference_logits(
                        alone, [*text[:known], *before[0][1 : c + 1], *(level[c] for level in before[1:])]
                    )[-1].argmax()
                )
                for c in range(width)
            ]
            filling = len(before) < k
            assert said == (new[1:] if filling else new)
            if not filling:
                for c, first in enumerate([text[known - 1], *before[0][1:]]):
                    kept.setdefault(first, []).append((*(level[c] for level in before[1:]), new[c]))
        before = [list(level) for level in levels]
        assert [len(level) for level in levels] == [4 + k - len(levels)] * len(levels)
    assert {first: set(own) for first, own in drafter._windows[0].pool.items()} == {
        first: set(own) for first, own in kept.items()
    }
    assert all(len(ngram) == k for own in kept.values() for ngram in own)


VOCAB, LENGTH, REQUESTS = 4, 3, 800
PROMPT = (1, 3, 1, 2, 1)
IDS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[FlatModel, dict[str, Path]]:
    """A target of four tokens, and heads that are fitted to noise: often wrong."""
    home, model = tmp_path_factory.mktemp("small"), FlatModel(causal_lm(**IDS), name="small")
    texts = [[(n * n + 3 * i) % VOCAB for i in range(20)] for n in range(3)]
    return model, {
        "medusa": save_medusa(home / "medusa", model, texts, project_form=False),
        "eagle": save_eagle(home / "eagle", model, texts, speculators_form=True),
        "eagle3": save_eagle3(home / "eagle3", model, texts, speculators_form=True),
        "mtp": save_mtp(home / "mtp", model, texts, form="mimo"),
        "eagle2": home / "eagle",
    }


def true_law(sampling: Sampling) -> dict[tuple[int, ...], float]:
    alone, texts = causal_lm(**IDS), list(product(range(VOCAB), repeat=LENGTH))
    with torch.inference_mode():
        logits = alone(torch.tensor([[*PROMPT, *text[:-1]] for text in texts]), use_cache=False).logits
    probs = sampling.law(logits[:, len(PROMPT) - 1 :])
    chances = probs.gather(-1, torch.tensor(texts)[..., None])[..., 0].prod(-1)
    return dict(zip(texts, chances.tolist(), strict=True))


SAMPLED: dict[str, Callable[[FlatModel, dict[str, Path]], Method]] = {
    "lookahead": lambda model, _: build_method("lookahead", model, None, {"window": 2, "guesses": 3, "from_prompt": 1}),
    "eagle2": lambda model, at: build_method(
        "eagle2", model, HEADS["eagle"](at["eagle"], model), {"nodes": 5, "topk": 2}
    ),
    **{
        name: lambda model, at, name=name: build_method(  # type: ignore[misc]
            name, model, HEADS[name](at[name], model), {}, planting=full_tree([2, 2])
        )
        for name in ("medusa", "eagle", "eagle3", "mtp")
    },
    "mtp chain": lambda model, at: build_method("mtp", model, HEADS["mtp"](at["mtp"], model), {}),
    "eagle chain": lambda model, at: build_method("eagle", model, HEADS["eagle"](at["eagle"], model), {}),
}


@pytest.mark.parametrize("case", SAMPLED)
def test_sampled_text_follows_the_law_of_the_target(case: str, small: tuple[FlatModel, dict[str, Path]]) -> None:
    """Joint law of three tokens with top-k, top-p and drafts that are drawn; a right engine fails with 1e-6."""
    sampling = Sampling(temperature=1.5, top_k=3, top_p=0.95, drafts="probabilistic", seed=4)
    model, folders = small
    own = SAMPLED[case](model, folders)
    prompts = [(n, Prompt(n, "", PROMPT, LENGTH)) for n in range(REQUESTS)]
    done = list(run_rounds(model, prompts, stops=(), batch=200, drafter=own.drafter(), k=2, sampling=sampling))
    accepted = sum(len(one.output) - len(one.emitted) for one in done)
    assert 0.05 * REQUESTS < accepted < 1.8 * REQUESTS
    law, counts = true_law(sampling), Counter(tuple(one.output) for one in done)
    assert all(law[text] > 0 for text in counts)
    expected = np.array(list(law.values())) * REQUESTS
    seen = np.array([counts[text] for text in law])
    rare = expected < 5
    assert (~rare).sum() >= 10, "the guard: the law is spread over many outputs"
    pooled = np.append(expected[~rare], expected[rare].sum()), np.append(seen[~rare], seen[rare].sum())
    kept = pooled[0] > 0
    assert float(stats.chisquare(pooled[1][kept], pooled[0][kept]).pvalue) > 1e-6


def test_sampled_trees_do_not_depend_on_the_batch(folders: dict[str, Path]) -> None:
    sampling = Sampling(temperature=0.8, drafts="probabilistic", seed=2)
    for case in ("eagle full", "eagle2", "lookahead"):
        runs = []
        for batch in (1, 3):
            own = method(case, folders)
            found = run_rounds(
                target(), requests()[:3], stops=(), batch=batch, drafter=own.drafter(), k=3, sampling=sampling
            )
            runs.append(sorted((one.number, one.output, one.emitted) for one in found))
        assert runs[0] == runs[1]
