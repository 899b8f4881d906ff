"""Drafters of trees for the tiny target, and for one of four tokens: heads fitted to text, and lookahead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "calibrate_acceptance"))

from served import greedy_text, prompts_of, target
from tiny_heads import save_eagle, save_eagle3, save_medusa

from calibrate.drafters.eagle_files import load_eagle, load_eagle3
from calibrate.drafters.feature import FeatureDrafter
from calibrate.drafters.lookahead import LookaheadDrafter
from calibrate.drafters.medusa import MedusaDrafter, load_medusa
from calibrate.drafters.planting import DynamicTree, StaticTree, full_tree
from calibrate.models import FlatModel
from specsim.config import ReplicaLimits
from specsim.memory import tree_limits

__all__ = ["PATHS", "PLANTED", "PROMPTS", "heads_of", "with_trees_of"]

PROMPTS = [9, 14, 5, 20, 1, 16]
"""Lengths of the prompts behind which the drafters know the text well."""
PATHS = StaticTree({(): 3, (0,): 2, (1,): 1, (0, 0): 2, (0, 0, 0): 1}, "some paths")
"""8 drafts on 3 levels, a few of many."""


def heads_of(model: FlatModel, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Heads of three kinds, fitted to texts."""
    with TemporaryDirectory() as folder:
        home = Path(folder)
        return {
            "medusa": load_medusa(save_medusa(home / "medusa", model, texts, project_form=False), model),
            "eagle": load_eagle(save_eagle(home / "eagle", model, texts, speculators_form=False), model),
            "eagle3": load_eagle3(save_eagle3(home / "eagle3", model, texts, speculators_form=True), model),
        }


@cache
def _heads() -> dict[str, Any]:
    return heads_of(target(), [[*prompt, *greedy_text(prompt, 24)] for prompt in prompts_of(PROMPTS)])


PLANTED: dict[str, Callable[[], Any]] = {
    "medusa paths": lambda: MedusaDrafter(_heads()["medusa"], PATHS),
    "eagle full": lambda: FeatureDrafter("eagle", _heads()["eagle"], full_tree([3, 2, 1])),
    "eagle3 paths": lambda: FeatureDrafter("eagle3", _heads()["eagle3"], PATHS),
    "eagle grown": lambda: FeatureDrafter("eagle2", _heads()["eagle"], DynamicTree(9, 3)),
    "eagle3 grown": lambda: FeatureDrafter("eagle3", _heads()["eagle3"], DynamicTree(12, 4)),
    "lookahead": lambda: LookaheadDrafter(window=4, guesses=4, from_prompt=True),
}
"""Fresh drafters of up to three levels for `served.target`."""


def with_trees_of(drafter: Any, limits: ReplicaLimits, k: int) -> ReplicaLimits:
    """The limits of an engine that verifies the drafter's trees."""
    return tree_limits(limits, drafter.trees(k))
