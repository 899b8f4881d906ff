"""Acceptance: how many drafts of a round match, as luck that belongs to output positions.

Models: constant and per-position conditional acceptance with an optional spread between requests and a proposal rate
for lookup drafters, a mixture of kinds of requests with memory, replay of measured requests, one model per task.
Leaves out: dependence on sampling temperature and on batch. Numbers: `scenarios.acceptance`, or the user.
"""

from specsim.acceptance.base import AcceptanceModel, Luck
from specsim.acceptance.by_task import ByTask
from specsim.acceptance.empirical import Empirical
from specsim.acceptance.fit_mixture import fit_mixture
from specsim.acceptance.measured import Measured, read_measured
from specsim.acceptance.mixture import Mixture
from specsim.acceptance.regime_chain import steady_regimes
from specsim.acceptance.shift_mixture import with_lengths, with_proposals
from specsim.acceptance.vector import Constant, PerPosition

__all__ = [
    "AcceptanceModel",
    "ByTask",
    "Constant",
    "Empirical",
    "Luck",
    "Measured",
    "Mixture",
    "PerPosition",
    "fit_mixture",
    "read_measured",
    "steady_regimes",
    "with_lengths",
    "with_proposals",
]
