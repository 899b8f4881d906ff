"""Accepting or rejecting drafts so that the output follows the target's own law exactly.

A draft x, drawn from `draft_probs`, is accepted with min(1, target(x) / draft(x)); at the first rejection one token is
drawn from norm(max(0, target - draft)), and when all are accepted a bonus token from the target's next law. Both laws
are those after temperature, top-k and top-p. Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023
(arXiv 2302.01318), theorem 1. Greedy decoding (temperature 0) is the case of laws with all mass on one token.

Of drafts that are siblings in a tree the rule is applied to one after another, each time to what the rejected ones left
of the target's law: Miao et al. 2024 (SpecInfer, arXiv 2305.09781), section 4.3; without replacement Chen et al. 2024
(Sequoia, arXiv 2402.12374), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specsim.errors import ProfileError

__all__ = ["Branch", "Round", "accept", "accept_tree", "sampling_law"]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of one sequence emitted."""

    tokens: tuple[int, ...]
    """Accepted drafts, then one recovered or bonus token: 1 to k + 1 tokens."""
    num_accepted: int

    @property
    def is_bonus(self) -> bool:
        """Whether every draft was accepted, so that the last token is the bonus token (true also without drafts)."""
        return len(self.tokens) == self.num_accepted + 1 and self.num_accepted == self.num_drafted

    num_drafted: int = 0


def sampling_law(
    logits: torch.Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> torch.Tensor:
    """Probabilities from which a token is drawn: float64 [..., vocabulary], each row summing to 1.

    Args:
        logits: [..., vocabulary], any float dtype.
        temperature: 0 puts all mass on the first largest logit.
        top_k: keep the k most likely tokens (None: all); ties at the edge are cut by position.
        top_p: then keep the smallest set whose mass reaches `top_p`, the token that crosses it included.

    Raises:
        ProfileError: a parameter out of range, or logits that are nan in a whole row.
    """
    if not temperature >= 0 or not 0 < top_p <= 1 or (top_k is not None and top_k < 1):
        raise ProfileError(
            f"sampling needs temperature >= 0, top_k >= 1 and 0 < top_p <= 1, got {temperature}, {top_k}, {top_p}"
        )
    values = logits.double()
    if torch.isnan(values).any():
        raise ProfileError("logits hold nan; the model's output cannot be sampled")
    if temperature == 0:
        return torch.zeros_like(values).scatter_(-1, values.argmax(-1, keepdim=True), 1.0)
    if top_k is None and top_p == 1:
        return torch.softmax(values / temperature, dim=-1)
    ordered, order = torch.sort(values / temperature, dim=-1, descending=True, stable=True)
    probs = torch.softmax(ordered, dim=-1)
    if top_k is not None:
        probs[..., top_k:] = 0.0
        probs /= probs.sum(-1, keepdim=True)
    if top_p < 1:
        mass_before = probs.cumsum(-1) - probs
        probs[mass_before >= top_p] = 0.0
        probs /= probs.sum(-1, keepdim=True)
    return torch.zeros_like(values).scatter_(-1, order, probs)


def accept(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_tokens: torch.Tensor,
    *,
    generator: torch.Generator,
) -> Round:
    """Verify one sequence's drafts.

    Args:
        target_probs: [k + 1, vocabulary]; row j is the target's law after the first j drafts.
        draft_probs: [k, vocabulary]; row j is the law from which draft j was drawn. None: every draft was certain.
        draft_tokens: int64 [k].
        generator: source of the k + 1 draws.

    Raises:
        ProfileError: shapes do not fit, or a draft has probability 0 under its own law.
    """
    k, vocabulary = len(draft_tokens), target_probs.shape[-1]
    given = (k, vocabulary) if draft_probs is None else tuple(draft_probs.shape)
    if target_probs.shape != (k + 1, vocabulary) or given != (k, vocabulary):
        raise ProfileError(
            f"{k} drafts need target_probs [{k + 1}, V] and draft_probs [{k}, V], got "
            f"{tuple(target_probs.shape)} and {given}"
        )
    draws = torch.rand(k, generator=generator, dtype=torch.float64)
    tokens: list[int] = []
    for j in range(k):
        token = int(draft_tokens[j])
        drafted = 1.0 if draft_probs is None else float(draft_probs[j, token])
        if drafted <= 0:
            raise ProfileError(f"draft {j} is token {token}, which its drafter gives probability 0")
        if float(draws[j]) * drafted >= float(target_probs[j, token]):
            if draft_probs is None:
                rest = target_probs[j].clone()
                rest[token] = 0.0
            else:
                rest = torch.clamp(target_probs[j] - draft_probs[j], min=0.0)
            tokens.append(_draw(rest / rest.sum(), generator))
            return Round(tuple(tokens), num_accepted=j, num_drafted=k)
        tokens.append(token)
    tokens.append(_draw(target_probs[k], generator))
    return Round(tuple(tokens), num_accepted=k, num_drafted=k)


@dataclass(frozen=True, slots=True)
class Branch:
    """What one round over a tree of drafts emitted."""

    tokens: tuple[int, ...]
    """Accepted drafts, then one recovered or bonus token."""
    nodes: tuple[int, ...]
    """Numbers of the accepted drafts, each a child of the one before it."""


def accept_tree(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None,
    draft_tokens: Sequence[int],
    parents: Sequence[int],
    *,
    generator: torch.Generator,
) -> Branch:
    """Verify one sequence's tree of drafts.

    Args:
        target_probs: [drafts + 1, vocabulary]; row 0 is the target's law behind the text, row 1 + n behind draft n.
        draft_probs: [drafts, vocabulary]; the law that each draft was drawn from, without its elder siblings. None:
            every draft was certain.
        draft_tokens: siblings differ.
        parents: of each draft the number of the draft that it follows, lower than its own; -1: the text.
        generator: source of one draw a sibling that is looked at, and of the last token.

    Raises:
        ProfileError: shapes do not fit, a parent that does not come before its child, siblings that are alike, or a
            draft with probability 0 under its own law.
    """
    drafts, vocabulary = len(draft_tokens), target_probs.shape[-1]
    given = (drafts, vocabulary) if draft_probs is None else tuple(draft_probs.shape)
    if target_probs.shape[0] != drafts + 1 or given != (drafts, vocabulary) or len(parents) != drafts:
        raise ProfileError(
            f"a tree of {drafts} drafts needs target_probs [{drafts + 1}, V], draft_probs [{drafts}, V] and {drafts} "
            f"parents, got {tuple(target_probs.shape)}, {given} and {len(parents)}"
        )
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ProfileError(f"draft {node} of a tree follows draft {parent}, which does not come before it")
        siblings = children.setdefault(parent, [])
        if any(draft_tokens[other] == draft_tokens[node] for other in siblings):
            raise ProfileError(f"draft {node} of a tree is token {draft_tokens[node]}, as a sibling of it is")
        siblings.append(node)
    at, path = -1, list[int]()
    while True:
        left = target_probs[at + 1].clone()
        for node in children.get(at, ()):
            token = int(draft_tokens[node])
            drafted = 1.0 if draft_probs is None else float(draft_probs[node, token])
            if drafted <= 0:
                raise ProfileError(f"draft {node} is token {token}, which its drafter gives probability 0")
            draw = float(torch.rand(1, generator=generator, dtype=torch.float64))
            if draw * drafted < float(left[token]):
                at = node
                path.append(node)
                break
            if draft_probs is None:
                left[token] = 0.0
            else:
                left = torch.clamp(left - draft_probs[node], min=0.0)
            left = left / left.sum()
        else:
            tokens = (*(int(draft_tokens[node]) for node in path), _draw(left, generator))
            return Branch(tokens, tuple(path))


def _draw(probs: torch.Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(probs, 1, generator=generator))
