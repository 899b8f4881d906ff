"""Acceptance at a sampling temperature, from greedy acceptance: one shift on the logit scale per method.

Models: published figures of one drafter at temperature 0 and 1 differ by a shift of the logit of a constant acceptance
that is nearly the same for good drafters and bad ones; it is taken as proportional to the temperature and applied to
every draft position. Lookups also propose less often, since sampled text repeats itself less.
Leaves out: top-k and top-p, which bring acceptance back towards greedy; what the temperature does to the drafter's own
law beyond greedy or not. Numbers: below, each with its source.
"""

from __future__ import annotations

import dataclasses
import math

from specsim.acceptance import Mixture, PerPosition
from specsim.config import DraftSampling
from specsim.drafters import Drafter

__all__ = ["at_temperature"]

_MODEL_SHIFT, _MODEL_SOURCE = 0.15, "EAGLE-3 and MTP figures at T = 0 and 1 of arXiv 2602.23881"
"""Logit shift at temperature 1 with probabilistic drafts. Acceptance lengths at k = 7, T = 0 and 1, of drafters trained
with the usual loss (model cards to arXiv 2602.23881): EAGLE-3 on Llama-3.3-70B 4.78 4.50 (shift 0.14), gpt-oss-120b
2.76 2.46 (0.21), gpt-oss-20b 3.46 3.17 (0.16), MTP of DeepSeek-V3 3.20 3.09 (0.06), fine-tuned 4.79 4.43 (0.18): mean
0.15, standard deviation 0.06."""
_HEADS_SHIFT = 0.35
"""The same for heads that do not see each other's drafts: Medusa on Llama-3.1-8B, k = 6, 2.19 1.85 (0.35)."""
_GREEDY_SHIFT = 0.18
"""What greedy drafts lose on top. Drafting by probability instead gained 7 to 11 % of the accepted length at T = 1
(llama.cpp PR 27694, Llama-3.1-8B with a 3B draft and Qwen MTP), a shift of 0.15 to 0.2 at these lengths; an EAGLE chain
on Qwen2-7B with greedy drafts fell from 1.70 to 1.50 at depth 5 (EAGLE issue 143), 0.35 in all."""
_LOOKUP_SHIFT, _LOOKUP_RATE = 0.63, 1.09
"""Of lookups, at temperature 1: shift of the match, and minus the logarithm of the factor on proposals. SmolLM2-135M at
T = 0.8 proposed in 5 % of rounds instead of 12 %, with 2.0 instead of 2.8 drafts accepted a proposal (measured for
specsim). A model that small has a flatter law than large ones, so for those this is too much."""
_ERROR = 0.5
"""One-sigma error of a shift, as a share of it: 0.06 of 0.15, and other methods than those measured."""


def at_temperature(
    model: PerPosition | Mixture, method: Drafter, temperature: float, sampling: DraftSampling | None, deepest: int
) -> tuple[PerPosition | Mixture, str, float]:
    """A greedy model at a temperature: `(model, one line that says so, one-sigma relative error that this adds)`.

    `deepest`: the k at which the error of the acceptance length is taken.
    """
    if temperature == 0.0:
        return model, "greedy", 0.0
    if method.varies:
        shift, how = _LOOKUP_SHIFT * temperature, "SmolLM2-135M at T = 0.8"
    else:
        base = _HEADS_SHIFT if method.mode == "heads" else _MODEL_SHIFT
        greedy = sampling != "probabilistic"
        shift = (base + (_GREEDY_SHIFT if greedy else 0.0)) * temperature
        how = f"{'greedy' if greedy else 'probabilistic'} drafts, {_MODEL_SOURCE}"
        if method.mode in ("parallel", "block") or method.loads in ("layers", "nothing"):
            how += f", borrowed for {method.name}"
    found = _moved(model, method, shift, temperature)
    lengths = [_moved(model, method, (1.0 + s) * shift, (1.0 + s) * temperature).expected_length(deepest)
               for s in (-_ERROR, _ERROR)]  # fmt: skip
    error = (lengths[0] - lengths[1]) / 2 / found.expected_length(deepest)
    if temperature > 1.0:
        how += "; extrapolated from T = 1, error widened"
        error *= temperature
    said = f"lowered for temperature {temperature:g} by {shift:.2f} on the logit scale ({how})"
    return found, said, error


def _moved(model: PerPosition | Mixture, method: Drafter, shift: float, temperature: float) -> PerPosition | Mixture:
    moved = model.with_logit_shift(-shift)
    if not method.varies:
        return moved
    factor = math.exp(-_LOOKUP_RATE * temperature)
    if isinstance(moved, PerPosition):
        return dataclasses.replace(moved, proposal_rate=moved.proposal_rate * factor)
    return moved.with_fewer_proposals(factor)
