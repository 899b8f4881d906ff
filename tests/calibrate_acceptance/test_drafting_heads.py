"""Medusa and EAGLE-3 heads: read in their published forms, the same in rounds of the engine and at known positions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")
sys.path.insert(0, str(Path(__file__).parent.parent / "reference_engine"))

from served import greedy_text, prompts_of, run_model, target  # noqa: E402
from tiny_heads import save_eagle3, save_medusa  # noqa: E402

from calibrate.acceptance.methods import Method, build_method  # noqa: E402
from calibrate.acceptance.prompts import Prompt  # noqa: E402
from calibrate.acceptance.rounds import run_rounds  # noqa: E402
from calibrate.drafters.eagle3_head import load_eagle3  # noqa: E402
from calibrate.drafters.head_files import head_tensors  # noqa: E402
from calibrate.drafters.medusa import load_medusa  # noqa: E402
from calibrate.engine import Sampling  # noqa: E402
from specsim.config import PolicySpec  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402

PROMPT_TOKENS, OUTPUT_TOKENS = [12, 20, 9], [30, 26, 34]


def texts() -> list[list[int]]:
    prompts = prompts_of(PROMPT_TOKENS)
    return [[*p, *greedy_text(p, n)] for p, n in zip(prompts, OUTPUT_TOKENS, strict=True)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("heads")
    return {
        "medusa": save_medusa(home / "medusa", target(), texts(), project_form=True),
        "medusa_vllm": save_medusa(home / "medusa_vllm", target(), texts(), project_form=False),
        "eagle3": save_eagle3(home / "eagle3", target(), texts(), speculators_form=False),
        "eagle3_speculators": save_eagle3(home / "eagle3_speculators", target(), texts(), speculators_form=True),
    }


HEADS = ("medusa", "medusa_vllm", "eagle3", "eagle3_speculators")


def method(folders: dict[str, Path], head: str) -> Method:
    name = head.partition("_")[0]
    draft: Any = (load_medusa if name == "medusa" else load_eagle3)(folders[head], target())
    return build_method(name, target(), draft, {})


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("head", HEADS)
def test_rounds_from_positions_are_the_engines_rounds(folders: dict[str, Path], head: str, k: int) -> None:
    own = method(folders, head)
    assert own.positions is not None
    served, runner = run_model(
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        drafts_by=own.drafter(),
        policy=PolicySpec("static", k),
    )
    drafting, accepted = own.positions(80), 0
    for n, prompt in enumerate(prompts_of(PROMPT_TOKENS)):
        output = list(runner.output(n))
        assert output == greedy_text(prompt, OUTPUT_TOKENS[n]), "drafts change no text"
        found = drafting.runs(prompt, output, 8)
        position, replayed = 1, []
        while position < len(output):
            drafted = k if found.drafts is None else min(k, int(found.drafts[position]))
            emitted = min(int(found.run[position]) + 1, k + 1, len(output) - position)
            replayed.append((position, drafted, emitted))
            position += emitted
        assert replayed == [(r.position, r.drafted, r.emitted) for r in served.rounds if r.request == n]
        accepted += sum(emitted - 1 for _, _, emitted in replayed)
    assert accepted > 10, "the guard: something is accepted"


@pytest.mark.parametrize("head", HEADS)
def test_every_round_of_this_package_is_known_by_position(folders: dict[str, Path], head: str) -> None:
    own = method(folders, head)
    assert own.positions is not None
    drafting = own.positions(80)
    prompts = [(n, Prompt(n, "", tuple(p), OUTPUT_TOKENS[n])) for n, p in enumerate(prompts_of(PROMPT_TOKENS))]
    prompts.append((3, Prompt(3, "", (7,), 9)))  # nothing is computed before its first round
    for one in run_rounds(target(), prompts, stops=(), batch=2, drafter=own.drafter(), k=6):
        found = drafting.runs(prompts[one.number][1].token_ids, one.output, 6)
        starts = np.cumsum([0, *one.emitted[:-1]])
        assert one.emitted == np.minimum(found.run[starts] + 1, len(one.output) - starts).tolist()
        if head.startswith("medusa"):
            assert one.drafted[:1] == [3 if one.number < 3 else 0]


@pytest.mark.parametrize("head", ["eagle3", "eagle3_speculators"])
def test_the_layer_of_an_eagle_head_is_plain_causal_attention(folders: dict[str, Path], head: str) -> None:
    """Known tokens and the steps of a chain, against one call of torch's attention over the whole sequence."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    own, draws = load_eagle3(folders[head], target()), torch.Generator().manual_seed(1)
    rows, known = 9, 6
    features, embedded = torch.randn(2, rows, 32, generator=draws, dtype=torch.float64)
    normed = own.hidden_norm(features)
    both = torch.cat([own.input_layernorm(embedded), normed], dim=-1)
    q, k, v = (p(both).unflatten(-1, (-1, 8)).transpose(0, 1)[None] for p in (own.q_proj, own.k_proj, own.v_proj))
    q, k = apply_rotary_pos_emb(q, k, *own.rotary(features[None], torch.arange(rows)[None]))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = (normed if head.endswith("speculators") else features) + own.o_proj(mixed[0].transpose(0, 1).flatten(1))
    wanted = out + own.mlp(own.post_attention_layernorm(out))

    queries, residual, base = own.begin(features[:known], embedded[:known], torch.arange(known))
    found = own.finish(queries, residual, base, torch.arange(known) + 1, [])
    torch.testing.assert_close(found, wanted[:known].detach(), atol=1e-6, rtol=1e-6)
    steps = []
    for row in range(known, rows):
        queries, residual, step = own.begin(features[row, None], embedded[row, None], torch.tensor([row]))
        steps.append(step)
        found = own.finish(queries, residual, base, torch.tensor([known]), steps)
        torch.testing.assert_close(found, wanted[row, None].detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("head", ["medusa", "eagle3"])
def test_sampled_rounds_do_not_depend_on_the_batch(folders: dict[str, Path], head: str) -> None:
    sampling = Sampling(temperature=0.7, drafts="probabilistic", seed=2)
    prompts = [(n, Prompt(n, "", tuple(p), 20)) for n, p in enumerate(prompts_of(PROMPT_TOKENS))]
    runs = []
    for batch in (1, 3):
        drafter = method(folders, head).drafter()
        found = run_rounds(target(), prompts, stops=(), batch=batch, drafter=drafter, k=3, sampling=sampling)
        runs.append(sorted((one.number, one.output, one.emitted) for one in found))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("head", HEADS)
def test_heads_that_do_not_fit_are_refused(folders: dict[str, Path], head: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    load = load_medusa if head.startswith("medusa") else load_eagle3
    config = json.loads((folders[head] / "config.json").read_text())
    tensors = head_tensors(folders[head])
    name = {"medusa": "0.1.weight", "medusa_vllm": "lm_heads.0.weight"}.get(head, "fc.weight")

    def refusal(config: dict[str, Any], tensors: dict[str, Any]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(ScenarioError) as error:
            load(tmp_path, target())
        assert "\n" not in str(error.value)
        return str(error.value)

    assert f"has no tensor '{name}'" in refusal(config, {key: t for key, t in tensors.items() if key != name})
    assert "has shape [1, 1], expected" in refusal(config, tensors | {name: torch.zeros(1, 1)})
    if head.startswith("eagle3"):
        fewer = {key: tensor for key, tensor in tensors.items() if key != "d2t"}
        fewer["lm_head.weight"] = tensors["lm_head.weight"][:50].clone()
        assert "does not say which (d2t)" in refusal(config | {"draft_vocab_size": 50}, fewer)
        assert "leads to tokens" in refusal(config, tensors | {"d2t": tensors["d2t"] + 60})
        wrong = config | {"eagle_aux_hidden_state_layer_ids": [2, 9, 3]}
        assert "before layers [2, 9, 3], which has layers 0 to 2" in refusal(wrong, tensors)
    else:
        assert "must say 'medusa_num_heads' or 'num_heads'" in refusal({}, tensors)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ScenarioError, match="holds no weights"):
        load(tmp_path, target())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"config\.json: cannot be read"):
        load(tmp_path, target())
