"""Acceptance: how many drafts of a round match, as luck that belongs to output positions.

Models: constant and per-position conditional acceptance with an optional spread between requests and a proposal rate
for lookup drafters, replay of measured requests, one model per task.
Leaves out: dependence on sampling temperature and on batch. Numbers: `scenarios.acceptance`, or the user.
"""

from specsim.acceptance.base import AcceptanceModel, Luck
from specsim.acceptance.by_task import ByTask
from specsim.acceptance.empirical import Empirical, read_measured
from specsim.acceptance.vector import Constant, PerPosition

__all__ = ["AcceptanceModel", "ByTask", "Constant", "Empirical", "Luck", "PerPosition", "read_measured"]
