"""What a round emits: greedy agreement, or exact rejection sampling with one random stream a request; over chains of
drafts and over trees."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from calibrate.drafters.base import Proposal
from calibrate.rejection import Branch, accept, accept_tree, sampling_law
from specsim.errors import ScenarioError

__all__ = ["Sampling", "emit_branches", "stream"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, the same for every request."""

    temperature: float = 0.0
    """0: greedy."""
    top_k: int | None = None
    top_p: float = 1.0
    drafts: Literal["greedy", "probabilistic"] = "greedy"
    """How a drafter with a law of its own draws its drafts."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.drafts not in ("greedy", "probabilistic"):
            raise ScenarioError(f"drafts are drawn greedy or probabilistic, not {self.drafts!r}")
        if not self.temperature >= 0 or not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            raise ScenarioError(
                f"sampling needs temperature >= 0, top_k >= 1 and 0 < top_p <= 1, got {self.temperature}, "
                f"{self.top_k}, {self.top_p}"
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def law(self, logits: torch.Tensor) -> torch.Tensor:
        """[..., vocabulary] probabilities, float64."""
        return sampling_law(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


def stream(sampling: Sampling, request: int) -> torch.Generator:
    """The draws of one request; they do not depend on what runs beside it."""
    return torch.Generator().manual_seed(sampling.seed * 1_000_003 + request)


def emit_branches(
    logits: torch.Tensor,
    proposals: Sequence[Proposal],
    streams: Sequence[torch.Generator],
    sampling: Sampling,
) -> list[Branch]:
    """What each sequence emits, accepted drafts and then a recovered or bonus token, and which drafts those were.

    Args:
        logits: [rows, vocabulary], for each sequence one row more than it has drafts, one sequence after another.
        proposals: drafts verified, chains or trees, one entry a sequence; empty where a prompt ends.
    """
    counts = [1 + len(proposal.tokens) for proposal in proposals]
    if sampling.is_greedy:
        best = logits.argmax(-1).tolist()
        ends = list(itertools.accumulate(counts))
        return [
            _followed(best[end - count : end], proposal.tokens, proposal.above)
            for proposal, count, end in zip(proposals, counts, ends, strict=True)
        ]
    laws: Iterable[torch.Tensor]
    if all(proposal.parents is None for proposal in proposals):
        laws = sampling.law(logits).cpu().split(counts)
    else:  # of a whole batch of trees they are vocabularies by the thousand
        laws = (sampling.law(rows).cpu() for rows in logits.split(counts))
    return [_accepted(*each) for each in zip(laws, proposals, streams, strict=True)]


def _accepted(law: torch.Tensor, proposal: Proposal, generator: torch.Generator) -> Branch:
    if proposal.parents is not None:
        return accept_tree(law, proposal.probs, proposal.tokens, proposal.parents, generator=generator)
    drafts = torch.tensor(proposal.tokens, dtype=torch.int64)
    tokens = accept(law, proposal.probs, drafts, generator=generator).tokens
    return Branch(tokens, tuple(range(len(tokens) - 1)))


def _followed(best: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Branch:
    """The branch that the target's likeliest tokens follow; best[0] is behind the text, best[1 + n] behind draft n."""
    at, path, said = -1, list[int](), [best[0]]
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == at and token == said[-1]:
            at = node
            path.append(node)
            said.append(best[1 + node])
    return Branch(tuple(said), tuple(path))
