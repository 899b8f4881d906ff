"""Drafters that really draft: each proposes tokens for a batch of sequences and is told what became of them."""

from calibrate.drafters.base import NOTHING, Draftee, Drafter, Proposal

__all__ = ["NOTHING", "Draftee", "Drafter", "Proposal"]
