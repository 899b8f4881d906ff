"""What a round emits: greedy agreement, or exact rejection sampling with one random stream a request; over chains of
drafts and over trees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from calibrate.drafters.base import Proposal
from calibrate.rejection import Branch, accept, accept_tree, sampling_law
from specsim.errors import ScenarioError

__all__ = ["Sampling", "emit", "emit_branches", "stream"]


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


def emit(
    logits: torch.Tensor,
    proposals: Sequence[Proposal],
    streams: Sequence[torch.Generator],
    sampling: Sampling,
) -> list[tuple[int, ...]]:
    """Tokens that each sequence emits: accepted drafts, then a recovered or bonus token.

    Args:
        logits: [rows, vocabulary], for each sequence one row more than it has drafts, one sequence after another.
        proposals: drafts verified, one entry a sequence; empty where a prompt ends.
    """
    counts = [1 + len(proposal.tokens) for proposal in proposals]
    if sampling.is_greedy:
        best = logits.argmax(-1).tolist()
        emitted, row = [], 0
        for proposal, count in zip(proposals, counts, strict=True):
            own = best[row : row + count]
            matches = next((n for n, draft in enumerate(proposal.tokens) if draft != own[n]), len(proposal.tokens))
            emitted.append(tuple(own[: matches + 1]))
            row += count
        return emitted
    laws = sampling.law(logits).cpu().split(counts)
    return [
        accept(law, proposal.probs, torch.tensor(proposal.tokens, dtype=torch.int64), generator=generator).tokens
        for law, proposal, generator in zip(laws, proposals, streams, strict=True)
    ]


def emit_branches(
    logits: torch.Tensor,
    proposals: Sequence[Proposal],
    streams: Sequence[torch.Generator],
    sampling: Sampling,
) -> list[Branch]:
    """As `emit`, of drafts that may be trees: what each sequence emits, and which of its drafts were accepted."""
    if all(proposal.parents is None for proposal in proposals):
        return [_straight(tokens) for tokens in emit(logits, proposals, streams, sampling)]
    counts = [1 + len(proposal.tokens) for proposal in proposals]
    if sampling.is_greedy:
        best = logits.argmax(-1).tolist()
        ends = list(itertools.accumulate(counts))
        return [
            _followed(best[end - count : end], proposal.tokens, proposal.above)
            for proposal, count, end in zip(proposals, counts, ends, strict=True)
        ]
    found = []
    # laws one sequence at a time: of a whole batch of trees they are vocabularies by the thousand
    for proposal, rows, generator in zip(proposals, logits.split(counts), streams, strict=True):
        if proposal.parents is None:
            found.append(_straight(emit(rows, [proposal], [generator], sampling)[0]))
        else:
            law = sampling.law(rows).cpu()
            found.append(accept_tree(law, proposal.probs, proposal.tokens, proposal.parents, generator=generator))
    return found


def _straight(tokens: tuple[int, ...]) -> Branch:
    """What a chain emitted."""
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
