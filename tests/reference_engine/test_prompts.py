"""Prompts cut out of texts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from calibrate.engine.prompts import cut_prompts
from specsim.errors import ScenarioError


def test_prompts_are_stretches_of_the_text_and_differ() -> None:
    text = list(range(1000))
    prompts = cut_prompts(text, [5, 7, 1000, 5], seed=1)
    assert [len(p) for p in prompts] == [5, 7, 1000, 5]
    assert all(p == text[p[0] : p[0] + len(p)] for p in prompts)
    assert prompts[0] != prompts[3]


def test_a_prompt_depends_on_seed_and_number_alone() -> None:
    text = list(range(1000))
    assert cut_prompts(text, [5, 9], seed=1)[1] == cut_prompts(text, [50, 9], seed=1)[1]
    assert cut_prompts(text, [5, 9], seed=1) != cut_prompts(text, [5, 9], seed=2)


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(ScenarioError, match="a prompt of 11 tokens cannot be cut out of a text of 10"):
        cut_prompts(list(range(10)), [3, 11], seed=0)
