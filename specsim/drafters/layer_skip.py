"""Self-speculation by layer skipping (LayerSkip): the target's first layers and its head draft, the rest verifies.

Models: k passes of the first layers, which write the target's own cache; the verify pass reads all weights, but for
drafts only the later layers compute, since the earlier ones have been computed in drafting. Nothing more is loaded.
Leaves out: attention of the first layers, which the verify pass is charged again. Numbers: a quarter of the layers, as
LayerSkip's Llama-2-7B (8 of 32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specsim.drafters.base import Drafter, Option, PerDraft
from specsim.errors import ScenarioError
from specsim.shapes import ModelShape

__all__ = ["DRAFTER", "first_layers"]


def first_layers(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    """The first `options["layers"]` layers of `target`, with its head. MoE layers are taken to come last, windowed ones
    to be spread evenly.

    Raises:
        ScenarioError: when not fewer layers are asked for than there are.
    """
    layers = options["layers"]
    if layers >= target.num_layers:
        raise ScenarioError(
            f"speculation.options.layers {layers}: {target.name} has {target.num_layers} layers, of which fewer must "
            f"draft; give at most {target.num_layers - 1}"
        )
    dense = target.num_layers - target.moe_layers
    moe = max(0, layers - dense)
    windowed = round(target.windowed_layers * layers / target.num_layers)
    return replace(
        target,
        name=f"first {layers} layers of {target.name}",
        kind="layers",
        num_layers=layers,
        moe_layers=moe,
        windowed_layers=windowed,
        num_mtp_layers=0,
        shares_target_head=True,
        tie_embeddings=False,
        source=f"derived from {target.name}",
        notes="",
    )


def _done(target: ModelShape, options: Mapping[str, int]) -> float:
    return options["layers"] / target.num_layers


DRAFTER = Drafter(
    name="layer_skip",
    title="self-speculation: the target's first layers draft",
    aliases=("LayerSkip", "self-speculation", "self speculative decoding", "early exit", "draft and verify"),
    source="Elhoushi et al. 2024, LayerSkip (arXiv 2404.16710)",
    mode="serial",
    loads="layers",
    kind="layers",
    derive=first_layers,
    catches_up=False,
    keeps_kv=False,
    lookahead=PerDraft(),
    verify_skip=_done,
    usual_k=6,
    options={"layers": Option("First layers of the target that draft.", 1, 512, lambda t: max(1, t.num_layers // 4))},
    notes="Only for targets trained with early exits: others accept next to nothing. Verify reuses the first layers' "
    "cache and hidden states.",
)
