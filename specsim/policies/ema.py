"""Moving average of accepted drafts with hysteresis, one tier of candidates for each range of batches.

Models: SGLang 0.5.23 `--speculative-adaptive` (AdaptiveStepSlot and AdaptiveSpeculativeParams in its
adaptive_spec_params.py). Followed: a batch is padded to a captured graph size and takes the slot with the largest lower
bound below it; each slot has its own k, average and count; a verify folds mean accepted drafts per request into the
average; after `warmup_batches` verifies every `update_interval`-th one decides: down while the average is at most
(next lower candidate - 0.5, or 0.5 where that is 0) + down hysteresis, else up while it exceeds (k - 0.5) + up
hysteresis, over as many candidates as that holds; `ceiling_coeff` > 0 caps what does not rise at that multiple of the
average, rounded up, at least 1; a slot at 0 drafts nothing, keeps its average, and tries its next candidate at the next
decision. The start is speculative_num_steps where it is a candidate, else the middle one; the average starts at k - 1.
Leaves out: averages shared over attention-DP ranks. SGLang drafts and verifies in one round; where drafts are verified
one step after they were made, a decision shows one step later.
Numbers: defaults are SGLang's built-in table and settings. Candidates above `num_spec_tokens` are dropped.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specsim.checks import number, read_number, read_whole, whole
from specsim.errors import ScenarioError
from specsim.policies.base import Ahead, Observed, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import LARGEST_BATCH, LARGEST_K, PolicySpec
from specsim.type_checks import check_types

__all__ = ["KIND", "Ema", "EmaSettings", "padded_batch"]

_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
"""Batches with a captured graph under speculation in SGLang, up to 256; from there on by 16."""


def padded_batch(batch: int) -> int:
    """The captured batch that SGLang pads to."""
    if batch > _SIZES[-1]:
        return -(-batch // 16) * 16
    return _SIZES[bisect_left(_SIZES, batch)]


@dataclass(frozen=True, slots=True)
class EmaSettings:
    """Settings of `ema`.

    Raises:
        ScenarioError: a value out of range.
    """

    candidates: tuple[tuple[int, tuple[int, ...]], ...] = ((1, (1, 3, 5, 7)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,)))
    """Rows (batch from which on, values of k to move between), rising; the first starts at 1."""
    initial_k: int | None = None
    """k at the start, where it is a candidate; None: `num_spec_tokens`."""
    ema_alpha: float = 0.2
    """Weight of the newest verify in the average."""
    update_interval: int = 5
    """Verifies between two decisions of a slot."""
    warmup_batches: int = 10
    """Verifies of a slot before its first decision."""
    up_hysteresis: tuple[float, ...] = (0.0,)
    """Added to the threshold upwards, by row of candidates; the last holds for further rows."""
    down_hysteresis: tuple[float, ...] = (-0.25, 0.0)
    """Added to the threshold downwards, likewise."""
    ceiling_coeff: tuple[float, ...] = (0.0,)
    """Cap of k as a multiple of the average, likewise; 0: none."""

    def __post_init__(self) -> None:
        check_types(self, "policy")
        last = 0
        for row in self.candidates:
            if len(row) != 2 or not isinstance(row[1], tuple) or not row[1]:
                raise ScenarioError(f"policy.candidates rows are [batch, [k, ...]], got {row!r}")
            whole("policy.candidates batch", row[0], 1, LARGEST_BATCH)
            if row[0] <= last or (last == 0 and row[0] != 1):
                raise ScenarioError(f"policy.candidates batches must rise from 1, got {row[0]} after {last}")
            for k in row[1]:
                whole("policy.candidates k", k, 0, LARGEST_K)
            last = row[0]
        if not self.candidates:
            raise ScenarioError("policy.candidates is empty; give at least [[1, [0, 1]]]")
        if self.initial_k is not None:
            whole("policy.initial_k", self.initial_k, 0, LARGEST_K)
        number("policy.ema_alpha", self.ema_alpha, 0, 1)
        whole("policy.update_interval", self.update_interval, 1, 1_000_000)
        whole("policy.warmup_batches", self.warmup_batches, 0, 1_000_000)
        for name, low, high in (("up_hysteresis", -64, 64), ("down_hysteresis", -64, 64), ("ceiling_coeff", 0, 64)):
            values = getattr(self, name)
            if not values:
                raise ScenarioError(f"policy.{name} is empty; give at least one number")
            for value in values:
                number(f"policy.{name}", value, low, high)


class _Slot:
    """k of one range of batches, and what it is decided by."""

    __slots__ = ("average", "candidates", "ceiling", "count", "down", "index", "up")

    def __init__(self, candidates: list[int], start: int, up: float, down: float, ceiling: float) -> None:
        self.candidates = candidates
        self.index = candidates.index(start) if start in candidates else len(candidates) // 2
        self.average = float(self.k - 1)
        self.count = 0
        self.up, self.down, self.ceiling = up, down, ceiling

    @property
    def k(self) -> int:
        return self.candidates[self.index]

    def decide(self) -> None:
        """Move to the candidate that the average asks for."""
        ks, last = self.candidates, len(self.candidates) - 1
        if self.k == 0:
            self.index = min(self.index + 1, last)
            if self.k and self.average < 0:
                self.average = float(self.k - 1)
            return
        index = self.index
        while index and self.average <= (ks[index - 1] - 0.5 if ks[index - 1] else 0.5) + self.down:
            index -= 1
        if index == self.index:
            while index < last and self.average > ks[index] - 0.5 + self.up:
                index += 1
        cap = max(1, math.ceil(self.average * self.ceiling)) if self.ceiling > 0 else LARGEST_K
        if cap < ks[index] <= self.k:
            while index and ks[index] > cap:
                index -= 1
        self.index = index


class Ema(Policy):
    """See the module."""

    watches = "totals"

    def __init__(self, num_spec_tokens: int, settings: EmaSettings) -> None:
        super().__init__(num_spec_tokens)
        self._alpha = settings.ema_alpha
        self._interval, self._warmup = settings.update_interval, settings.warmup_batches
        self._from = [batch for batch, _ in settings.candidates]
        start = num_spec_tokens if settings.initial_k is None else settings.initial_k
        self._slots = [
            _Slot(
                _allowed(ks, num_spec_tokens),
                start,
                _of_row(settings.up_hysteresis, row),
                _of_row(settings.down_hysteresis, row),
                _of_row(settings.ceiling_coeff, row),
            )
            for row, (_, ks) in enumerate(settings.candidates)
        ]
        self._by_batch: dict[int, _Slot] = {}
        self._groups = np.zeros(0, dtype=np.int64)

    def _slot(self, batch: int) -> _Slot:
        slot = self._by_batch.get(batch)
        if slot is None:
            row = max(0, bisect_right(self._from, padded_batch(batch)) - 1)
            slot = self._by_batch[batch] = self._slots[row]
        return slot

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return self._slot(batch).k

    def observe(self, seen: Observed) -> None:
        if not seen.rounds:
            return
        slot = self._slot(seen.rounds)
        if seen.draft_rounds:
            slot.average += self._alpha * (seen.accepted / seen.rounds - slot.average)
        slot.count += 1
        due = slot.count - self._warmup
        if due > 0 and due % self._interval == 0:
            slot.decide()

    def ahead(self, most_requests: int) -> Ahead:
        if len(self._groups) <= most_requests:
            groups = [self._slots.index(self._slot(batch)) for batch in range(most_requests + 1)]
            self._groups = np.array(groups, dtype=np.int64)
        ks = np.array([slot.k for slot in self._slots], dtype=np.int8)[self._groups]
        left = np.array([self._until_due(slot) for slot in self._slots], dtype=np.int64)
        return Ahead(ks[None], groups=self._groups, left=left)

    def _until_due(self, slot: _Slot) -> int:
        """Verifies of a slot up to its next decision."""
        due = slot.count - self._warmup
        return self._interval - (due % self._interval if due > 0 else due)

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        return self._until_due(self._slot(batch)), self.ALWAYS


def _allowed(candidates: Sequence[int], num_spec_tokens: int) -> list[int]:
    return sorted({k for k in candidates if k <= num_spec_tokens})


def _of_row(values: Sequence[float], row: int) -> float:
    return values[min(row, len(values) - 1)]


def _check(spec: PolicySpec) -> None:
    for batch, ks in spec.settings.candidates:
        if not _allowed(ks, spec.num_spec_tokens):
            raise ScenarioError(
                f"policy ema: no candidate from batch {batch} on is at most num_spec_tokens {spec.num_spec_tokens} "
                f"({', '.join(map(str, ks))}); raise it or change candidates"
            )
    start = spec.settings.initial_k
    ks = sorted({k for _, row in spec.settings.candidates for k in _allowed(row, spec.num_spec_tokens)})
    if start is not None and start not in ks:
        raise ScenarioError(
            f"policy ema: initial_k {start} is no candidate, so that it does nothing; candidates up to num_spec_tokens "
            f"{spec.num_spec_tokens} are {', '.join(map(str, ks))}"
        )


def _candidates_from_text(text: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Rows of `1=1/3/5,8=0/1`."""
    rows = (piece.split("=") for piece in text.split(","))
    return tuple((read_whole(batch), tuple(read_whole(k) for k in ks.split("/"))) for batch, ks in rows)


def _numbers_from_text(text: str) -> tuple[float, ...]:
    return tuple(map(read_number, text.split("/")))


def _candidates_to_text(rows: Any) -> str:
    return ",".join(f"{batch}={'/'.join(map(str, ks))}" for batch, ks in rows)


KIND = PolicyKind(
    name="ema",
    summary="moves between candidate values of k by a moving average of accepted drafts per request, with hysteresis "
    "and a set of candidates for each range of batches, as SGLang's `--speculative-adaptive`",
    make=lambda spec, view: Ema(spec.num_spec_tokens, spec.settings),
    label=lambda spec: f"ema<={spec.num_spec_tokens}",
    spelling="ema:K",
    example="ema:5",
    settings=EmaSettings,
    check=_check,
    from_text={
        "candidates": _candidates_from_text,
        "up_hysteresis": _numbers_from_text,
        "down_hysteresis": _numbers_from_text,
        "ceiling_coeff": _numbers_from_text,
    },
    to_text={"candidates": _candidates_to_text},
    engines=("sglang",),
    rank=4,
)
