"""Other spellings of policies that are here under another name: settings as TensorRT-LLM's configuration has them.

Models: max_concurrency; draft_len_schedule, whose keys changed their meaning: upper bounds since the one-model path
({4: 4, 8: 2, 32: 1} is 4 drafts up to batch 4, 2 up to 8, 1 up to 32 and none above), lower bounds in the early form
for two models, of late 2025 ({1: 4, 4: 2, 8: 0}, key 1 required).
Leaves out: max_concurrency first caps the count by max_num_tokens // (1 + k). Numbers: the user's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from specsim.checks import read_whole
from specsim.policies.spec import LARGEST_BATCH, PolicySpec

__all__ = ["SPELLINGS", "Spelling"]


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name in front of the first colon that stands for another policy."""

    spelling: str
    example: str
    meaning: str
    """What the words stand for in the engine that has them."""
    read: Callable[[Sequence[str]], PolicySpec]
    """The policy of the parts between colons; ValueError: malformed."""


def _pairs(text: str) -> list[tuple[int, int]]:
    pairs = [tuple(map(read_whole, piece.split("="))) for piece in text.split(",")]
    if any(len(pair) != 2 for pair in pairs) or pairs != sorted(pairs):
        raise ValueError(text)
    return [(batch, k) for batch, k in pairs]


def _upper(parts: Sequence[str]) -> PolicySpec:
    (text,) = parts
    pairs = _pairs(text)
    firsts = [1, *(batch + 1 for batch, _ in pairs)]
    rows = [(first, batch, k) for first, (batch, k) in zip(firsts, pairs, strict=False)]
    rows.append((firsts[-1], LARGEST_BATCH, 0))
    return PolicySpec("schedule", max(k for _, k in pairs), table=tuple(rows))


def _lower(parts: Sequence[str]) -> PolicySpec:
    (text,) = parts
    pairs = _pairs(text)
    lasts = [*(after - 1 for (_, _), (after, _) in itertools.pairwise(pairs)), LARGEST_BATCH]
    rows = tuple((batch, last, k) for (batch, k), last in zip(pairs, lasts, strict=True))
    return PolicySpec("schedule", max(k for _, k in pairs), table=rows)


def _max_concurrency(parts: Sequence[str]) -> PolicySpec:
    k, batch = parts
    return PolicySpec("off_above", read_whole(k), batch_limit=read_whole(batch))


SPELLINGS: Mapping[str, Spelling] = MappingProxyType(
    {
        "max_concurrency": Spelling(
            "max_concurrency:K:BATCH",
            "max_concurrency:3:64",
            "TensorRT-LLM: no drafts above that many active requests",
            _max_concurrency,
        ),
        "draft_len_schedule": Spelling(
            "draft_len_schedule:LAST=K,...",
            "draft_len_schedule:4=4,8=2,32=1",
            "TensorRT-LLM 1.3 and later: keys are upper bounds of the batch, none above the last",
            _upper,
        ),
        "draft_len_schedule_lower": Spelling(
            "draft_len_schedule_lower:FIRST=K,...",
            "draft_len_schedule_lower:1=4,4=2,8=0",
            "TensorRT-LLM of late 2025, two models: keys are lower bounds, the first is 1",
            _lower,
        ),
    }
)
"""Name -> what it stands for."""
