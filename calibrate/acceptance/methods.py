"""Methods that really draft: how each does in rounds, and at known positions where that is the same.

By position: the drafts depend on nothing but the text, and fewer drafts are the first of more. Else by round, one run
for every k: suffix decoding weighs how far each match carries, so that its drafts for k = 1 are not the first of those
for k = 5, and it remembers what it answered before; Lookahead's n-grams depend on the rounds before; of a tree that
grows by probabilities fewer levels are another tree; at a temperature the text itself depends on the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calibrate.acceptance.head_positions import FeaturePositions, MedusaPositions
from calibrate.acceptance.positions import ChainPositions, NgramPositions, Runs
from calibrate.drafters import Drafter
from calibrate.drafters.draft_model import DraftModelDrafter
from calibrate.drafters.eagle_files import load_eagle, load_eagle3
from calibrate.drafters.feature import FeatureDrafter
from calibrate.drafters.layer_skip import LayerSkipDrafter
from calibrate.drafters.lookahead import LookaheadDrafter
from calibrate.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from calibrate.drafters.mtp_files import load_mtp
from calibrate.drafters.ngram import NgramDrafter
from calibrate.drafters.planting import CHAIN, DynamicTree, Planting
from calibrate.drafters.suffix import SuffixDrafter
from calibrate.models import FlatModel
from calibrate.models.feature_head import FeatureHead
from specsim.errors import ScenarioError, nearest

__all__ = [
    "HEADS",
    "METHODS",
    "NEEDS_DRAFT",
    "PLANTED",
    "WITHIN_TARGET",
    "WITH_TREES",
    "Method",
    "Positions",
    "build_method",
    "chosen_options",
]

Draft = FlatModel | MedusaHeads | FeatureHead


class Positions(Protocol):
    """Drafts against a known text."""

    def runs(self, prompt: Sequence[int], output: Sequence[int], most: int) -> Runs:
        """What rounds with at most `most` drafts would match at every output position."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """One method with its options, ready to be run."""

    name: str
    options: Mapping[str, float]
    """Every option with the value that it has."""
    drafter: Callable[[], Drafter]
    """A fresh drafter for rounds."""
    positions: Callable[[int], Positions] | None
    """For texts of at most so many tokens; None: only rounds are true."""
    looks_up: bool
    """Whether it often proposes less than it is asked for."""
    tree: str = ""
    """Shape of the trees that it has verified; empty: chains, or trees that its options describe."""
    remembers: bool = False
    """Whether past requests change its drafts, so that requests run one after another."""


_DEFAULTS: dict[str, dict[str, float]] = {
    "draft_model": {},
    "ngram": {"min_tokens": 5, "max_tokens": 5},
    "suffix": {"depth": 24, "max_responses": 10_000, "factor": 1.0, "min_probability": 0.1},
    "layer_skip": {"layers": 0},
    "medusa": {},
    "eagle": {"nodes": 0, "topk": 0},
    "eagle2": {"nodes": 60, "topk": 10},
    "eagle3": {"nodes": 0, "topk": 0},
    "mtp": {"nodes": 0, "topk": 0},
    "lookahead": {"window": 15, "guesses": 15, "from_prompt": 0},
}
METHODS: tuple[str, ...] = tuple(_DEFAULTS)
"""What can be measured, and served."""
NEEDS_DRAFT: Mapping[str, str] = {
    "draft_model": "a draft model",
    "medusa": "the folder of Medusa heads",
    "eagle": "the folder of an EAGLE head",
    "eagle2": "the folder of an EAGLE head",
    "eagle3": "the folder of an EAGLE-3 head",
    "mtp": "the folder of a checkpoint with an MTP module",
}
"""Methods that need weights of their own, and which."""
HEADS: Mapping[str, Callable[[str | Path, FlatModel], Draft]] = {
    "medusa": load_medusa,
    "eagle": load_eagle,
    "eagle2": load_eagle,
    "eagle3": load_eagle3,
    "mtp": load_mtp,
}
"""Methods whose weights are a folder that means something beside its target only, and what reads it."""
WITHIN_TARGET: tuple[str, ...] = ("mtp",)
"""Methods whose weights are those of the target's own folder where no other is given."""
PLANTED: tuple[str, ...] = ("medusa", "eagle", "eagle3", "mtp")
"""Methods that draft chains, or static trees where one is given."""
WITH_TREES: tuple[str, ...] = ("eagle2", "lookahead")
"""Methods that always draft trees."""


def chosen_options(name: str, options: Mapping[str, float]) -> dict[str, float]:
    """Every option of a method, those given over its defaults.

    Raises:
        ScenarioError: not among `METHODS`, or an option that it does not have.
    """
    if name not in METHODS:
        raise ScenarioError(f"'{name}' cannot be run here{nearest(name, METHODS)}; there are {', '.join(METHODS)}")
    values = dict(_DEFAULTS[name])
    for key, value in options.items():
        if key not in values:
            there = ", ".join(values) or "none"
            raise ScenarioError(f"{name} has no option '{key}'{nearest(key, values)}; its options: {there}")
        values[key] = value
    return values


def build_method(
    name: str,
    target: FlatModel,
    draft: Draft | None,
    options: Mapping[str, float],
    *,
    planting: Planting = CHAIN,
    syncs_at_zero: bool = False,
) -> Method:
    """A method by its name.

    Args:
        draft: the draft model or heads, for those that need them.
        options: those of this method that differ from their defaults.
        planting: the shape of the drafts of those in `PLANTED`.
        syncs_at_zero: a draft model keeps up in steps after which nothing is drafted.

    Raises:
        ScenarioError: not among `METHODS`, an option that it does not have, a draft model missing, or two trees.
    """
    values = chosen_options(name, options)
    whole = {key: int(value) for key, value in values.items()}
    if name in NEEDS_DRAFT and draft is None:
        raise ScenarioError(f"{name} needs {NEEDS_DRAFT[name]}; give it with --draft")
    if name == "medusa":
        assert isinstance(draft, MedusaHeads)
        heads = draft
        return Method(
            name,
            values,
            lambda: MedusaDrafter(heads, planting),
            lambda n: MedusaPositions(target, heads, longest=n, planting=planting),
            False,
            planting.shape,
        )
    if name in ("eagle", "eagle2", "eagle3", "mtp"):
        assert isinstance(draft, FeatureHead)
        head = draft
        if values["nodes"] or values["topk"]:
            if planting is not CHAIN:
                raise ScenarioError(f"{name} has the tree {planting.name}, and options nodes and topk for another")
            planting = DynamicTree(whole["nodes"], whole["topk"])
        return Method(
            name,
            values,
            lambda: FeatureDrafter(name, head, planting),
            None if planting.is_scored else lambda n: FeaturePositions(target, head, longest=n, planting=planting),
            False,
            planting.shape,
        )
    if name == "lookahead":
        LookaheadDrafter(window=whole["window"], guesses=whole["guesses"])
        return Method(
            name,
            values,
            lambda: LookaheadDrafter(
                window=whole["window"], guesses=whole["guesses"], from_prompt=bool(whole["from_prompt"])
            ),
            None,
            False,
        )
    if name == "draft_model":
        assert isinstance(draft, FlatModel)
        model = draft
        return Method(
            name,
            values,
            lambda: DraftModelDrafter(model, syncs_at_zero=syncs_at_zero),
            lambda n: ChainPositions(model, longest=n),
            False,
        )
    if name == "layer_skip":
        layers = whole["layers"] or target.num_layers // 2
        short = target.first_layers(layers)
        return Method(
            name,
            {"layers": layers},
            lambda: LayerSkipDrafter(num_layers=layers),
            lambda n: ChainPositions(short, longest=n),
            False,
        )
    if name == "ngram":
        low, high = whole["min_tokens"], whole["max_tokens"]
        NgramDrafter(min_tokens=low, max_tokens=high)
        return Method(
            name,
            values,
            lambda: NgramDrafter(min_tokens=low, max_tokens=high),
            lambda n: NgramPositions(min_tokens=low, max_tokens=high),
            True,
        )

    def suffix() -> Drafter:
        return SuffixDrafter(
            depth=whole["depth"],
            max_responses=whole["max_responses"],
            factor=values["factor"],
            min_probability=values["min_probability"],
        )

    suffix()
    return Method(name, values, suffix, None, True, remembers=True)
