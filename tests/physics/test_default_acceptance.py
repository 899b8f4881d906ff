"""Published acceptance defaults: what is known, what is borrowed, and what users give."""

from __future__ import annotations

import pytest

from scenarios.acceptance import default_acceptance, default_vector, known_tasks
from scenarios.chosen_acceptance import chosen_acceptance
from scenarios.models import load_models
from specsim.acceptance import AcceptanceModel, Mixture
from specsim.config import Speculation
from specsim.drafters import drafter, method_names
from specsim.errors import ScenarioError


def chosen(speculation: Speculation) -> tuple[AcceptanceModel, str]:
    found = chosen_acceptance(speculation, "llama-3.1-8b")
    return found.model, found.said


@pytest.mark.parametrize(
    ("method", "task", "lengths"),
    [
        # mean acceptance length at k = 1, 3, 5, 10 as published with the measured requests (arXiv 2601.11580 data)
        ("eagle", "gsm8k", (1.693, 2.379, 2.651, 2.780)),
        ("eagle", "sharegpt", (1.660, 2.252, 2.476, 2.628)),
        ("ngram", "gsm8k", (1.109, 1.164, 1.177, 1.185)),
        ("ngram", "sharegpt", (1.236, 1.395, 1.451, 1.501)),
    ],
)
def test_llama_defaults_reproduce_the_published_lengths(method: str, task: str, lengths: tuple[float, ...]) -> None:
    model, source = default_acceptance(method, "llama-3.1-8b", task)
    vector, _ = default_vector(method, "llama-3.1-8b", task)
    assert [vector.expected_length(k) for k in (1, 3, 5, 10)] == pytest.approx(lengths, rel=0.012)
    assert [model.expected_length(k) for k in (1, 3, 5, 10)] == pytest.approx(lengths, rel=0.012)
    assert "2601.11580" in source and "borrowed" not in source
    assert vector.sigma > 0 and isinstance(model, Mixture)
    assert model.expected_drafts(3) == pytest.approx(vector.expected_drafts(3), rel=1e-3)


def test_every_method_has_a_default_for_every_model_and_task() -> None:
    for method in method_names():
        for name in load_models():
            for task in (None, *known_tasks()):
                model, source = default_acceptance(method, name, task)
                assert 1.0 < model.expected_length(3) < 4.0
                assert source
                assert model.proposal_rate == 1.0 or drafter(method).varies


def test_what_is_borrowed_says_so() -> None:
    assert default_acceptance("eagle", "qwen3-8b")[1].startswith("borrowed from llama-3.1-8b")
    assert default_acceptance("eagle", "llama-3.1-8b", "code")[1].startswith("borrowed from task chat")
    assert default_acceptance("mtp", "glm-4.5-air", "code")[1].startswith("borrowed from glm-5.2")
    assert "borrowed" not in default_acceptance("mtp", "deepseek-v3")[1]
    assert "borrowed from smollm2-135m" in default_acceptance("ngram", "llama-3.1-8b", "edit")[1]


@pytest.mark.parametrize(
    ("method", "target", "task", "lender"),
    [
        ("eagle3", "llama-3.3-70b", None, "llama-3.1-8b"),
        ("eagle3", "meta-llama/Llama-3.1-70B", "math", "llama-3.1-8b"),
        ("eagle3", "Llama-mine/config.json", None, "llama-3.1-8b"),
        ("mtp", "deepseek-v2-lite", None, "deepseek-v3"),
        ("mtp", "qwen3-8b", "math", "qwen3.5-27b"),
        ("ngram", "smollm2-1.7b", "chat", "smollm2-135m"),
        ("ngram", "smollm2-1.7b", "math", "llama-3.1-8b"),
        ("eagle3", "gemma-2-9b", None, "minimax-m3"),
    ],
)
def test_the_family_lends_before_the_fallback(method: str, target: str, task: str | None, lender: str) -> None:
    assert default_acceptance(method, target, task)[1].startswith(f"borrowed from {lender}")


def test_eagle3_of_llama_follows_its_published_lengths() -> None:
    model, _ = default_acceptance("eagle3", "llama-3.1-8b")
    assert [model.expected_length(k) for k in range(2, 8)] == pytest.approx([2.36, 2.79, 3.08, 3.32, 3.46, 3.54])


def test_given_vector_and_length_win_over_the_catalogue() -> None:
    model, source = chosen(Speculation(acceptance=(0.7, 0.6, 0.5)))
    assert model.conditional[:4] == (0.7, 0.6, 0.5, 0.5) and source.startswith("given")
    model, source = chosen(Speculation(acceptance_length=2.388, acceptance_length_k=3))
    assert model.expected_length(3) == pytest.approx(2.388) and "constant" in source
    model, _ = chosen(Speculation(acceptance_length=2.0, num_spec_tokens=(4,)))
    assert model.expected_length(4) == pytest.approx(2.0)


def test_given_figures_of_a_lookup_are_split_into_rate_and_match() -> None:
    model, source = chosen(Speculation(method="ngram", acceptance=(0.09, 0.58, 0.62)))
    assert model.proposal_rate == pytest.approx(0.09 / 0.72)
    assert model.expected_length(3) == pytest.approx(1 + 0.09 * (1 + 0.58 + 0.58 * 0.62))
    assert "proposal" in source
    given_length = Speculation(method="ngram", acceptance_length=1.165, acceptance_length_k=3)
    model, _ = chosen(given_length)
    assert model.expected_length(3) == pytest.approx(1.165) and model.proposal_rate < 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: default_acceptance("eagel", "llama-3.1-8b"), "did you mean 'eagle'"),
        (lambda: default_acceptance("eagle", "llama-3.1-8b", "maht"), "did you mean 'math'"),
        (lambda: chosen(Speculation(acceptance_length=2.0)), "acceptance_length_k"),
        (lambda: chosen(Speculation(acceptance_length=5.0, acceptance_length_k=3)), "1..4"),
    ],
)
def test_contradictions_are_refused_in_one_line(call, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        call()
    assert words in str(caught.value) and "\n" not in str(caught.value)
