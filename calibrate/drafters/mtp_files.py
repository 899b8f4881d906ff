"""MTP modules, which mostly lie beside the layers of their target, in the files of its checkpoint.

Forms: DeepSeek-V3 and GLM-4.5 (one more layer, `model.layers.N.enorm`, `hnorm`, `eh_proj`, `shared_head.norm`),
Qwen3-Next (`mtp.pre_fc_norm_embedding`, `pre_fc_norm_hidden`, `fc`, `norm`, `layers.0.*`), MiMo (`model.mtp_layers.0.*`
with `token_layernorm`, `hidden_layernorm`, `input_proj`, `final_layernorm`) and speculators (`mtp_layers.0.*`, names of
MiMo). [embedding, state] are projected, in MiMo's checkpoints [state, embedding]. The layer is one of the target's own
kind, its last one; embedding and output head are the target's unless the files have others.

The module is used again for every draft, and each time reads its own state behind its last norm, as SGLang and
speculators run it; vLLM hands a DeepSeek module its state before that norm. Leaves out: checkpoints with several
modules, one a draft; quantised ones; layers with a window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from calibrate.drafters.head_config import head_config
from calibrate.drafters.head_files import fill, head_tensors, in_one_line, refuse_form, take, tensor_names
from calibrate.models import FlatModel
from calibrate.models.feature_head import FeatureHead, HeadPlan
from specsim.errors import ScenarioError

__all__ = ["load_mtp"]

_EXPERT = re.compile(r"^(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$")


@dataclass(frozen=True)
class _Form:
    """Where a module's tensors lie."""

    layer: str
    """What stands before the names of its layer."""
    norms: tuple[str, str, str]
    """Of the embedding, of the state, and before the output head."""
    projection: str
    feature_first: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Tensors by which it is known."""
        return f"{self.norms[0]}.weight", f"{self.projection}.weight"


@in_one_line
def load_mtp(folder: str | Path, target: FlatModel) -> FeatureHead:
    """The module of a directory, the target's own or another.

    Raises:
        ScenarioError: there is none, or it does not fit the target.
    """
    place = Path(folder)
    whole = head_config(place)
    given = whole.get("transformer_layer_config") or whole.get("text_config") or whole
    number = given.get("num_hidden_layers", target.num_layers)
    forms = _forms(number, of_speculators="transformer_layer_config" in whole)
    beginnings = ("mtp.", "mtp_layers.", "model.mtp_layers.", f"model.layers.{number}.", f"model.layers.{number + 1}.")
    tensors = head_tensors(place, lambda name: name.startswith(beginnings))
    form = next((form for form in forms if all(mark in tensors for mark in form.marks)), None)
    if form is None:
        looked_for = f"tensors {', or '.join(form.marks[0] for form in forms)}"
        raise refuse_form(place, tensor_names(place), "checkpoint with an MTP module", looked_for)
    second = (f"model.layers.{number + 1}.", "mtp.layers.1.", "mtp_layers.1.", "model.mtp_layers.1.")
    if any(name.startswith(second) for name in tensors):
        raise ScenarioError(f"{place}: has several MTP modules, one a draft; one that is used again is read here")
    for key, value in (("hidden_size", target.config.hidden_size), ("vocab_size", int(target.config.vocab_size))):
        if given.get(key, value) != value:
            raise ScenarioError(f"{place}: is for a target of {key} {given[key]}, and {target.name} has {value}")
    plan = HeadPlan(
        combines=True, combine_norms=True, feature_first=form.feature_first, last_norm=True, feature_normed=True,
        head_rows=target.vocab_size if "shared_head.head.weight" in _within(tensors, form) else 0,
    )  # fmt: skip
    head = FeatureHead(_layer_config(given, target, place), plan, name=str(place))
    renamed = {
        "embedding_norm": form.norms[0], "feature_norm": form.norms[1], "norm": form.norms[2],
        "combine": form.projection, "lm_head": f"{form.layer}shared_head.head",
    }  # fmt: skip
    tensors = _with_joined_experts(tensors)

    def theirs(ours: str) -> str:
        if ours.startswith("layers.0."):
            return form.layer + ours.removeprefix("layers.0.")
        first, _, rest = ours.partition(".")
        return f"{renamed[first]}.{rest}"

    embedding = f"{form.layer}embed_tokens.weight"
    fill(head, tensors, theirs, place, unused=(embedding,))
    if embedding in tensors:
        head.embedding = take(tensors, embedding, (head.vocab_size, head.size), place)
    return head.ready(target)


def _forms(number: int, *, of_speculators: bool) -> tuple[_Form, ...]:
    deepseek, mimo = f"model.layers.{number}.", "mtp_layers.0." if of_speculators else "model.mtp_layers.0."
    return (
        _Form(deepseek, (f"{deepseek}enorm", f"{deepseek}hnorm", f"{deepseek}shared_head.norm"), f"{deepseek}eh_proj"),
        _Form("mtp.layers.0.", ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"), "mtp.fc"),
        _Form(
            mimo,
            (f"{mimo}token_layernorm", f"{mimo}hidden_layernorm", f"{mimo}final_layernorm"),
            f"{mimo}input_proj",
            feature_first=not of_speculators,
        ),
    )


def _within(tensors: Mapping[str, torch.Tensor], form: _Form) -> set[str]:
    return {name.removeprefix(form.layer) for name in tensors if name.startswith(form.layer)}


def _layer_config(given: dict[str, Any], target: FlatModel, place: Path) -> transformers.PretrainedConfig:
    """One layer of the target's architecture: its last one, or of a hybrid the last with full attention."""
    config = target.config
    if given.get("model_type") not in (None, config.model_type):
        raise ScenarioError(
            f"{place}: holds a layer of model_type '{given['model_type']}', and {target.name} is of "
            f"'{config.model_type}'; give the module of this target"
        )
    values, most = config.to_dict(), config.num_hidden_layers
    kinds = values.get("layer_types") or ["full_attention"] * most
    full = [n for n, kind in enumerate(kinds) if kind == "full_attention"]
    if not full:
        raise ScenarioError(f"{target.name} has no layer of full attention, of which an MTP module could be one")
    for key, value in values.items():
        if isinstance(value, list) and len(value) == most:
            values[key] = [value[full[-1]]]
    if isinstance(values.get("first_k_dense_replace"), int):
        values["first_k_dense_replace"] = 0 if values["first_k_dense_replace"] < most else 1
    if values.get("mlp_only_layers"):
        values["mlp_only_layers"] = [0] if full[-1] in values["mlp_only_layers"] else []
    return type(config).from_dict(values | {"num_hidden_layers": 1})


def _with_joined_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts, which files keep one by one, as the two tensors that transformers has of them."""
    found: dict[str, torch.Tensor] = {}
    apart: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.match(name)
        if match is None:
            found[name] = tensor
        else:
            apart.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
    for stem, parts in apart.items():
        count = 1 + max(number for number, _ in parts)
        try:
            joined = [torch.cat([parts[n, "gate"], parts[n, "up"]]) for n in range(count)]
            down = [parts[n, "down"] for n in range(count)]
        except KeyError as error:
            number, which = error.args[0]
            raise ScenarioError(f"'{stem}.{number}.{which}_proj.weight' is missing among {count} experts") from None
        found[f"{stem}.gate_up_proj"], found[f"{stem}.down_proj"] = torch.stack(joined), torch.stack(down)
    return found
