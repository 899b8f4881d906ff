"""Drafting heads: read in their published forms, the same in rounds of the engine and at known positions."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
pytest.importorskip("transformers", reason="the calibrate extra is not installed")
sys.path.insert(0, str(Path(__file__).parent.parent / "reference_engine"))

from safetensors.torch import save_file  # noqa: E402
from served import greedy_text, prompts_of, run_model, target  # noqa: E402
from tiny import causal_lm  # noqa: E402
from tiny_heads import save_eagle, save_eagle3, save_medusa, save_mtp  # noqa: E402

from calibrate.acceptance import head_positions  # noqa: E402
from calibrate.acceptance.methods import HEADS as LOADERS  # noqa: E402
from calibrate.acceptance.methods import Method, build_method  # noqa: E402
from calibrate.acceptance.prompts import Prompt  # noqa: E402
from calibrate.acceptance.rounds import run_rounds  # noqa: E402
from calibrate.drafters.eagle_files import load_eagle3  # noqa: E402
from calibrate.drafters.head_files import head_tensors  # noqa: E402
from calibrate.engine import Sampling  # noqa: E402
from calibrate.models import FlatBatch, FlatModel, Part, SlotCache  # noqa: E402
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
        "eagle": save_eagle(home / "eagle", target(), texts(), speculators_form=False),
        "eagle_speculators": save_eagle(home / "eagle_speculators", target(), texts(), speculators_form=True),
        "mtp_qwen": save_mtp(home / "mtp_qwen", target(), texts(), form="qwen"),
        "mtp_mimo": save_mtp(home / "mtp_mimo", target(), texts(), form="mimo"),
        "mtp_speculators": save_mtp(home / "mtp_speculators", target(), texts(), form="speculators"),
        "mtp_deepseek": save_mtp(home / "mtp_deepseek", target(), texts(), form="deepseek"),
        "eagle3": save_eagle3(home / "eagle3", target(), texts(), speculators_form=False),
        "eagle3_speculators": save_eagle3(home / "eagle3_speculators", target(), texts(), speculators_form=True),
    }


HEADS = (
    "medusa", "medusa_vllm", "eagle", "eagle_speculators", "eagle3", "eagle3_speculators", "mtp_deepseek", "mtp_qwen",
    "mtp_mimo", "mtp_speculators",
)  # fmt: skip


def method(folders: dict[str, Path], head: str) -> Method:
    name = head.partition("_")[0]
    return build_method(name, target(), LOADERS[name](folders[head], target()), {})


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
def test_the_layer_of_an_eagle3_head_written_out(folders: dict[str, Path], head: str) -> None:
    """Known tokens and the steps of a chain, against one call of torch's attention over the whole sequence."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    own, draws = load_eagle3(folders[head], target()), torch.Generator().manual_seed(1)
    rows, known = 9, 6
    tokens = torch.randint(61, (rows,), generator=draws)
    features = torch.randn(rows, 32, generator=draws, dtype=torch.float64)
    embedded = target().embed(tokens) if own.embedding is None else own.embedding[tokens]
    layer, rotary = own.layers[0], own.rotary(features[None], torch.arange(rows)[None])
    normed = layer.hidden_norm(features)
    both = torch.cat([layer.input_layernorm(embedded), normed], dim=-1)
    attention = layer.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (p(both).unflatten(-1, (-1, 8)).transpose(0, 1)[None] for p in projections)
    q, k = apply_rotary_pos_emb(q, k, *rotary)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = (normed if head.endswith("speculators") else features) + attention.o_proj(mixed[0].transpose(0, 1).flatten(1))
    wanted = (out + layer.mlp(layer.post_attention_layernorm(out))).detach()

    cache = SlotCache(1, rows)
    found, _ = own(features[:known], FlatBatch(tokens[:known].tolist(), [Part(0, 0, known)]), cache, target())
    torch.testing.assert_close(found, wanted[:known], atol=1e-6, rtol=1e-6)
    for row in range(known, rows):
        batch = FlatBatch([int(tokens[row])], [Part(0, row, 1)])
        found, read = own(features[row, None], batch, cache, target())
        torch.testing.assert_close(found, wanted[row, None], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(read, own.norm(found), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("head", ["eagle", "eagle3", "mtp_mimo"])
def test_positions_that_are_followed_in_small_groups_find_the_same(
    folders: dict[str, Path], head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, text = method(folders, head), texts()[0]
    assert own.positions is not None
    whole = own.positions(80).runs(text[:12], text[12:], 5)
    monkeypatch.setattr(head_positions, "_AT_ONCE", 4)
    small = own.positions(80).runs(text[:12], text[12:], 5)
    assert small.run.tolist() == whole.run.tolist()
    assert whole.run.max() >= 2


def test_an_mtp_module_of_latent_attention_and_experts_is_a_layer_of_its_target(tmp_path: Path) -> None:
    """Against transformers' own last layer with the same weights, projected inputs and a causal mask."""
    from transformers.masking_utils import create_causal_mask

    served = FlatModel(causal_lm("deepseek_v3"), name="target")
    folder = save_mtp(tmp_path / "head", served, [[5, 9, 7, 3, 8, 6]], form="deepseek")
    own, given = LOADERS["mtp"](folder, served), head_tensors(folder)
    alone = causal_lm("deepseek_v3").model
    layer, stem = alone.layers[-1], "model.layers.3."
    weights = {name.removeprefix(stem): t for name, t in given.items() if name.startswith(stem)}
    parts = [weights.get(f"mlp.experts.{n}.{which}_proj.weight") for n in range(4) for which in ("gate", "up", "down")]
    weights["mlp.experts.gate_up_proj"] = torch.stack([torch.cat(parts[3 * n : 3 * n + 2]) for n in range(4)])
    weights["mlp.experts.down_proj"] = torch.stack(parts[2::3])
    layer.load_state_dict({name: weights[name] for name in layer.state_dict()})
    draws = torch.Generator().manual_seed(2)
    tokens, states = torch.randint(61, (1, 7), generator=draws), torch.randn(1, 7, 32, generator=draws).double()

    def normed(x: Any, name: str) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + alone.config.rms_norm_eps) * weights[f"{name}.weight"]

    pair = torch.cat([normed(alone.embed_tokens(tokens), "enorm"), normed(states, "hnorm")], dim=-1)
    out, places = pair @ weights["eh_proj.weight"].T, torch.arange(7)[None]
    mask = create_causal_mask(alone.config, out, None, None, places)
    rotary = alone.rotary_emb(out, places)
    wanted = normed(
        layer(out, attention_mask=mask, position_ids=places, position_embeddings=rotary), "shared_head.norm"
    )
    batch = FlatBatch(tokens[0].tolist(), [Part(0, 0, 7)])
    found, read = own(own.features((states[0],)), batch, SlotCache(1, 7), served)
    torch.testing.assert_close(found, wanted[0].detach(), atol=1e-5, rtol=1e-4)
    assert found is read, "the next feature is behind the norm"


@pytest.mark.parametrize("head", ["medusa", "eagle", "eagle3", "mtp_qwen"])
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
    load = LOADERS[head.partition("_")[0]]
    config = json.loads((folders[head] / "config.json").read_text())
    tensors = head_tensors(folders[head])
    name, seen_as = {
        "medusa": ("0.1.weight", "0.1.weight"),
        "medusa_vllm": ("lm_heads.0.weight", "lm_heads.0.weight"),
        "eagle": ("layers.0.mlp.up_proj.weight",) * 2,
        "eagle_speculators": ("transformer.mlp.up_proj.weight",) * 2,
        "eagle3": ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        "eagle3_speculators": ("layers.0.mlp.up_proj.weight",) * 2,
        "mtp_deepseek": ("model.layers.3.shared_head.norm.weight",) * 2,
        "mtp_qwen": ("mtp.norm.weight",) * 2,
        "mtp_mimo": ("model.mtp_layers.0.final_layernorm.weight",) * 2,
        "mtp_speculators": ("mtp_layers.0.final_layernorm.weight",) * 2,
    }[head]

    def refusal(config: dict[str, Any], tensors: dict[str, Any]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
        with pytest.raises(ScenarioError) as error:
            load(tmp_path, target())
        assert "\n" not in str(error.value)
        return str(error.value)

    assert f"has no tensor '{seen_as}'" in refusal(config, {key: t for key, t in tensors.items() if key != name})
    assert "has shape [1, 1], expected" in refusal(config, tensors | {name: torch.zeros(1, 1)})
    packed = tensors | {name: tensors[name].to(torch.float8_e4m3fn)}
    assert f"tensor '{name}' is quantised" in refusal(config, packed)
    inner = config.get("transformer_layer_config", config)
    wrong = dict(inner, vocab_size=99)
    other = refusal(config | ({"transformer_layer_config": wrong} if inner is not config else wrong), tensors)
    assert "99" in other
    assert "is for a target" in other
    if not head.startswith("medusa"):
        extra = {"mtp_deepseek": "model.layers.3.", "mtp_qwen": "mtp."}.get(
            head, "mtp_layers.0." if "mtp" in head else ""
        )
        extra = "model.mtp_layers.0." if head == "mtp_mimo" else extra
        said = refusal(config, tensors | {f"{extra}further_norm.weight": torch.ones(32)})
        assert "1 tensors have no place in a head of this kind" in said
    if head.startswith("eagle3"):
        fewer = {key: tensor for key, tensor in tensors.items() if key not in ("d2t", "t2d")}
        fewer["lm_head.weight"] = tensors["lm_head.weight"][:50].clone()
        assert "does not say which (d2t)" in refusal(config | {"draft_vocab_size": 50}, fewer)
        assert "leads to tokens" in refusal(config, tensors | {"d2t": tensors["d2t"] + 60})
        assert "'t2d' and 'd2t' name different" in refusal(config, tensors | {"t2d": ~tensors["t2d"]})
        wrong = config | {"eagle_aux_hidden_state_layer_ids": [2, 9, 3]}
        assert "behind layers [1, 8, 2], counted from 0, and target has 3 layers" in refusal(wrong, tensors)
    if head == "eagle":
        assert "further norms" in refusal(config | {"layernorms": True}, tensors)
    if head == "mtp_qwen":
        assert "several MTP modules" in refusal(config, tensors | {"mtp.layers.1.mlp.up_proj.weight": torch.ones(1)})
        assert "a layer of model_type 'qwen2'" in refusal(config | {"model_type": "qwen2"}, tensors)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ScenarioError, match="holds no weights"):
        load(tmp_path, target())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"config\.json: cannot be read"):
        load(tmp_path, target())


@pytest.mark.parametrize(
    ("method", "given", "looked_for", "found"),
    [
        ("eagle", "eagle3", "tensors fc.weight and layers.0.*", "an EAGLE-3 head (--method eagle3)"),
        ("eagle3", "eagle", "midlayer.hidden_norm.weight", "an EAGLE head (--method eagle)"),
        ("eagle3", "medusa", "midlayer.hidden_norm.weight", "Medusa heads (--method medusa)"),
        ("medusa", "eagle", "'medusa_num_heads' or 'num_heads'", "an EAGLE head (--method eagle)"),
        ("medusa", "mtp_qwen", "'medusa_num_heads' or 'num_heads'", "an MTP module (--method mtp)"),
        ("mtp", "medusa_vllm", "model.layers.1.enorm.weight, or mtp.pre_fc", "Medusa heads (--method medusa)"),
    ],
)
def test_a_folder_of_another_kind_is_named(
    folders: dict[str, Path], method: str, given: str, looked_for: str, found: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        LOADERS[method](folders[given], target())
    assert looked_for in str(error.value)
    assert f"seems to be {found}" in str(error.value)
    assert "\n" not in str(error.value)


SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "rms_norm_eps", "max_position_embeddings",
)  # fmt: skip
IDS = "eagle_aux_hidden_state_layer_ids"
NO_HEADS = [
    *(
        (head, key, [value for value in (None, "x", 4.5, True, [3], 0, -1, 10**9, {})
                     if value is not None or key not in ("num_key_value_heads", "head_dim")])
        for head in ("eagle", "eagle3", "mtp_qwen") for key in SIZES
    ),
    ("eagle3", "draft_vocab_size", [-1, "x", 10**9, 62, True]),
    ("eagle3", IDS, [5, "x", True, [], ["x"], [1.5], {}]),
    ("eagle3_speculators", "transformer_layer_config", [[1], "x", {"hidden_size": None}]),
    ("mtp_qwen", "num_hidden_layers", [None, "x", [], {}, 0, True]),
    ("medusa_vllm", "num_hidden_layers", [0, True, "x", None]),
    ("medusa", "medusa_num_layers", [0, -1, True]),
    ("medusa", "medusa_num_heads", [0, True, 10**9, None]),
    ("medusa_vllm", "truncated_vocab_size", ["x", -1]),
]  # fmt: skip


@pytest.mark.parametrize(("head", "key", "values"), NO_HEADS, ids=lambda value: str(value)[:24])
def test_numbers_that_make_no_head_are_refused_in_one_line(
    folders: dict[str, Path], head: str, key: str, values: list[Any], tmp_path: Path
) -> None:
    for file in folders[head].iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for value in values:
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ScenarioError) as error:
            LOADERS[head.partition("_")[0]](tmp_path, target())
        assert "describes no head that can be built: '" in str(error.value)
        assert key in str(error.value)
        assert str(tmp_path) in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("head", ["medusa", "medusa_vllm", "eagle", "eagle3", "mtp_qwen"])
def test_weights_that_are_no_weights_are_named(folders: dict[str, Path], head: str, tmp_path: Path) -> None:
    load, tensors = LOADERS[head.partition("_")[0]], head_tensors(folders[head])
    shutil.copy(folders[head] / "config.json", tmp_path)
    name = next(
        name for name in sorted(tensors) if name.endswith(("linear.weight", "layers.0.weight", "up_proj.weight"))
    )
    seen_as = name.replace("midlayer", "layers.0")

    def refusal(changed: dict[str, Any]) -> str:
        save_file({key: tensor.contiguous().clone() for key, tensor in changed.items()}, tmp_path / "model.safetensors")
        with pytest.raises(ScenarioError) as error:
            load(tmp_path, target())
        assert "\n" not in str(error.value)
        return str(error.value)

    for bad in (float("nan"), float("inf")):
        spoilt = tensors[name].clone()
        spoilt[0, 0] = bad
        said = refusal(tensors | {name: spoilt})
        assert f"tensor '{seen_as}' has 1 of {spoilt.numel():,} values that are no finite number" in said
    assert f"tensor '{seen_as}' is of int64" in refusal(tensors | {name: tensors[name].long()})
    if head.startswith("medusa"):
        bias = name.replace("weight", "bias")
        said = refusal({key: tensor for key, tensor in tensors.items() if key != bias})
        assert f"has no tensor '{bias}', and other blocks have theirs" in said
    if head == "eagle3":
        assert "tensor 'd2t' is of float32" in refusal(tensors | {"d2t": tensors["d2t"].float()})


def test_layers_that_eagle3_reads_are_named_by_what_enters_or_leaves_them(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """speculators and vLLM: what enters; SpecForge and SGLang, within `eagle_config`: what leaves; else the project's
    own, of a target deep enough to have them."""
    config = json.loads((folders["eagle3"] / "config.json").read_text())
    shutil.copy(folders["eagle3"] / "model.safetensors", tmp_path)

    def read(**changes: Any) -> tuple[int, ...]:
        own = {key: value for key, value in (config | changes).items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(own))
        return load_eagle3(tmp_path, deep).hidden_layers

    deep = FlatModel(causal_lm(num_hidden_layers=8), name="deep")
    ids = "eagle_aux_hidden_state_layer_ids"
    assert read() == (0, 1, 2)
    assert read(**{ids: None, "eagle_config": {ids: [1, 4, 6]}}) == (1, 4, 6)
    assert read(**{ids: None}) == (1, 3, 4), "layers 2, 4 and 5 of 8 by what enters them"
