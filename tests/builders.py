"""Small worlds with keyword defaults, so that each test shows only what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.config import ReplicaLimits
from specsim.latency import StepCost
from specsim.profiles import LatencyProfile, PassCost
from specsim.traces.model import Trace, TraceMeta

__all__ = ["FixedLuck", "make_cost", "make_limits", "make_pass", "make_profile", "make_trace"]


def make_trace(
    *,
    arrival_s: Sequence[float] = (0.0,),
    prompt_tokens: Sequence[int] | int = 10,
    output_tokens: Sequence[int] | int = 5,
    hashes: Sequence[Sequence[int]] | None = None,
    hash_block_tokens: int | None = None,
) -> Trace:
    """A trace from plain lists; a single number holds for every request."""
    n = len(arrival_s)
    prompts = [prompt_tokens] * n if isinstance(prompt_tokens, int) else list(prompt_tokens)
    outputs = [output_tokens] * n if isinstance(output_tokens, int) else list(output_tokens)
    meta = TraceMeta(source="test", format="test", time_unit="s", sha256="0" * 64, rows_read=n, rows_kept=n)
    ids = offsets = None
    if hashes is not None:
        ids = np.array([key for row in hashes for key in row], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in hashes]))).astype(np.int64)
    return Trace(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompts, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        meta=meta,
        hash_ids=ids,
        hash_offsets=offsets,
        hash_block_tokens=hash_block_tokens if hashes is not None else None,
    )


def make_pass(**changes: float) -> PassCost:
    """A pass of 10 ms weights, 20 microseconds a token and 40 ns a cached token: near an 8B model on one H100."""
    terms: dict[str, float] = {
        "weights_s": 5.5e-3,
        "token_s": 2e-5,
        "head_weights_s": 4e-4,
        "head_row_s": 1e-6,
        "kv_token_s": 4e-8,
        "kv_pair_s": 1e-10,
        "fixed_s": 1e-4,
    }
    return PassCost(**{**terms, **changes})  # type: ignore[arg-type]


def make_profile(*, draft: PassCost | None = None, lookup: bool = False, **changes: object) -> LatencyProfile:
    """An exact test profile with a serial drafter a tenth of the target; `lookup` leaves the drafter out."""
    if draft is None and not lookup:
        draft = make_pass(weights_s=6e-4, token_s=2e-6, head_weights_s=2e-4, kv_token_s=2e-9, fixed_s=2e-5)
    values: dict[str, object] = {
        "name": "test",
        "kind": "analytic",
        "target": make_pass(),
        "draft": draft,
        "draft_mode": "none" if draft is None else "serial",
        "host_s": 1e-3,
    }
    return LatencyProfile(**{**values, **changes})  # type: ignore[arg-type]


def make_cost(**changes: object) -> StepCost:
    """A compiled `make_profile`."""
    return StepCost(make_profile(**changes))  # type: ignore[arg-type]


def make_limits(**changes: object) -> ReplicaLimits:
    """A replica with plenty of everything."""
    values: dict[str, object] = {"num_kv_blocks": 100_000, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    return ReplicaLimits(**{**values, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class FixedLuck:
    """Acceptance for tests: runs drawn from 0..max_run, and proposals with a given probability, by request address."""

    max_run: int = 4
    proposal_rate: float = 1.0
    constant: int | None = None
    """Every run is this long."""
    varied: bool = False
    """Proposals have 1..7 drafts instead of as many as asked; runs are cut to them."""
    every_other: bool = False
    """Every other chunk of 4 requests is proposed as many drafts as asked."""

    name: str = "fixed"
    max_spec_tokens: int = 64

    def luck(self, seed: int, first_request_id: int, output_tokens: np.ndarray, tasks: np.ndarray | None) -> _Luck:
        runs, drafts = [], []
        for n, length in enumerate(output_tokens.tolist()):
            rng = np.random.default_rng((seed, first_request_id + n))
            run = rng.integers(0, self.max_run + 1, size=length)
            if self.constant is not None:
                run = np.full(length, self.constant)
            sizes = rng.integers(1, 8, size=length) if self.varied else np.full(length, self.max_spec_tokens)
            offered = np.where(rng.random(length) < self.proposal_rate, sizes, 0)
            if self.every_other and first_request_id % 8 == 0:
                offered = np.full(length, self.max_spec_tokens)
            runs.append(np.minimum(run, offered))
            drafts.append(offered)
        always = all((offered == self.max_spec_tokens).all() for offered in drafts)
        return _Luck(np.concatenate(runs).astype(np.int8), None if always else np.concatenate(drafts).astype(np.int8))

    def expected_drafts(self, num_spec_tokens: int) -> float:
        sizes = [min(size, num_spec_tokens) for size in range(1, 8)] if self.varied else [num_spec_tokens]
        return self.proposal_rate * sum(sizes) / len(sizes)

    def expected_length(self, num_spec_tokens: int) -> float:
        if self.constant is not None:
            return 1.0 + min(self.constant, num_spec_tokens)
        return 1.0 + sum(min(r, num_spec_tokens) for r in range(self.max_run + 1)) / (self.max_run + 1)


@dataclass(frozen=True)
class _Luck:
    run: np.ndarray
    drafts: np.ndarray | None
