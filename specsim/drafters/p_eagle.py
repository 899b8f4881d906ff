"""P-EAGLE and other parallel heads: an EAGLE-3 head that drafts every position in one pass over mask tokens.

Models: one pass over the caught-up tokens and k - 1 further rows a request; four layers, as the published heads have.
Leaves out: nothing else.
Numbers: vLLM 0.33.0 sources (k - 1 input slots), the model card of amazon/gpt-oss-20b-p-eagle.
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.drafters.base import Drafter, EngineName, Option, PerDraft
from specsim.drafters.eagle import eagle_head
from specsim.shapes import ModelShape

__all__ = ["DRAFTER"]


def _derived(target: ModelShape, options: Mapping[str, int]) -> ModelShape:
    return eagle_head(target, "eagle3", layers=options["layers"])


DRAFTER = Drafter(
    name="p_eagle",
    title="P-EAGLE: an EAGLE-3 head that drafts all positions in one pass",
    aliases=("P-EAGLE", "parallel EAGLE", "parallel heads", "parallel-drafting EAGLE"),
    source="P-EAGLE (arXiv 2602.01469); vLLM 0.33.0 sources",
    mode="parallel",
    loads="head",
    kind="eagle3",
    derive=_derived,
    extra_rows=PerDraft(each=1, fixed=-1),
    usual_k=5,
    options={"layers": Option("Decoder layers of the head.", 1, 16, 4)},
    engines={
        "vllm": EngineName("eagle3", remark="vLLM's V2 model runner does not take P-EAGLE.",
                           settings={"parallel_drafting": True}),
    },
    borrows=("eagle3",),
)  # fmt: skip
