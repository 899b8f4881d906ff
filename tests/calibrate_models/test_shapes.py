"""Configurations made from shapes: a model built from one has the parameters that the shape counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the calibrate extra is not installed")
transformers = pytest.importorskip("transformers", reason="the calibrate extra is not installed")

from calibrate.models.shapes import config_values  # noqa: E402
from scenarios.models import load_models  # noqa: E402
from specsim.errors import ScenarioError  # noqa: E402
from specsim.shapes import ModelShape  # noqa: E402


def parameters(values: dict) -> tuple[int, int]:
    """(matrix parameters, embedding parameters) of the model that transformers builds, nothing allocated."""
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = {name: w.numel() for name, w in model.named_parameters() if w.ndim > 1}
    embedding = weights.pop("model.embed_tokens.weight")
    return sum(weights.values()), embedding


def catalogue() -> list[ModelShape]:
    shapes = []
    for shape in load_models().values():
        try:
            config_values(shape)
        except ScenarioError:
            continue
        shapes.append(shape)
    return shapes


@pytest.mark.parametrize("shape", catalogue(), ids=lambda shape: shape.name)
def test_a_model_of_the_catalogue_has_the_parameters_that_its_shape_counts(shape: ModelShape) -> None:
    """Two layers of each kind are built; 1 % is left for shared-expert gates and the like."""
    moe = min(2, shape.moe_layers)
    dense = min(2, shape.num_layers - shape.moe_layers)
    small = replace(
        shape, num_layers=dense + moe, moe_layers=moe, windowed_layers=min(shape.windowed_layers, dense + moe - 1)
    )
    counted = small.attention_parameters + small.dense_mlp_parameters + small.routed_expert_parameters
    counted += 0 if small.tie_embeddings else small.head_parameters
    built, embedding = parameters(config_values(small))
    assert embedding == small.embedding_parameters
    assert built == pytest.approx(counted, rel=0.01)


def test_the_catalogue_is_mostly_covered() -> None:
    assert len(catalogue()) >= 20


def test_windowed_layers_are_spread_evenly() -> None:
    shape = ModelShape("m", 12, 64, 4, 2, 16, 128, 100, 512, windowed_layers=10, window_tokens=32)
    kinds = config_values(shape)["layer_types"]
    assert [n for n, kind in enumerate(kinds) if kind == "full_attention"] == [5, 11]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "eagle3"}, "is a drafter of kind eagle3"),
        ({"gated_mlp": False}, "MLPs of two matrices"),
        (
            {"windowed_layers": 1, "window_tokens": 8, "moe_layers": 1, "num_experts": 4, "experts_per_token": 1,
             "moe_intermediate_size": 16},
            "windows with experts",
        ),
    ],
)  # fmt: skip
def test_what_no_architecture_here_has_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        config_values(replace(ModelShape("m", 2, 64, 4, 2, 16, 128, 100, 512), **changes))
