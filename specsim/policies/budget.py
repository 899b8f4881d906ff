"""Drafts all, verifies those most likely to survive, and so many of them that accepted tokens per second are most.

Models: vLLM's adaptive verification (`enable_adaptive_verification`, PR 47808 and its documentation). Followed: the
drafter proposes `num_spec_tokens` for every request, and what it costs depends on requests alone; token budget and
blocks are charged for all drafts, since the trimming comes after scheduling; every (request, position) is scored by its
survival probability, the running product of that request's estimates by position; slots compete across requests, an
equal score going to the earlier position and then to the earlier request; of all totals the one is taken with most
expected tokens (one for each request that samples, and the survival of each slot admitted) per second of draft curve at
the requests plus verify curve at the tokens of the step, prompts included and host time left out; both curves are
measured at start-up with dummy requests of 1 + `num_spec_tokens` tokens behind `profile_context_tokens` of cache, the
verify curve at captured sizes (a step between them costs the next) and at doubling sizes beyond, interpolated there.
So a further token is charged its share of a further request's cache: where attention reads the whole cache and contexts
are shorter than profiled, too little is verified.
Leaves out: estimates from the draft's own logits or a confidence head, which tell easy tokens from hard ones within a
request. Here an engine has its counts only: acceptance by position over all requests, times how much better a request
has done so far than they, both with fading memory, and hopeful where there is none (vLLM starts at 1 too). So the gain
is understated where confidences are good. vLLM sizes the budget from estimates two steps old; here they are one old.
Numbers: profile context from vLLM; memories are assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specsim.checks import number, whole
from specsim.errors import ScenarioError
from specsim.policies.base import Ahead, Curves, EngineView, Observed, Policy
from specsim.policies.kind import PolicyKind
from specsim.policies.spec import PolicySpec
from specsim.type_checks import check_types

__all__ = ["KIND", "Budget", "BudgetSettings", "cost_tables"]


_NOTHING = np.zeros(0)


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """Settings of `budget`.

    Raises:
        ScenarioError: a value out of range.
    """

    budget_tokens: int | None = None
    """Most drafts verified in a step; None: as many as bring most tokens per second."""
    profile_context_tokens: int = 8192
    """Cached tokens of each request when the curves are measured (VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN)."""
    memory_steps: float = 200.0
    """Steps after which acceptance by position has faded to 37 % in the estimate."""
    request_memory_rounds: float = 20.0
    """Rounds after which what a request did has faded to 37 % in its own estimate."""
    request_prior_tokens: float = 3.0
    """Accepted drafts that a request must bring until its own record weighs as much as everybody's."""

    def __post_init__(self) -> None:
        check_types(self, "policy")
        if self.budget_tokens is not None:
            whole("policy.budget_tokens", self.budget_tokens, 0, 2**31 - 1)
        whole("policy.profile_context_tokens", self.profile_context_tokens, 1, 2**31 - 1)
        number("policy.memory_steps", self.memory_steps, 1, 1e9)
        number("policy.request_memory_rounds", self.request_memory_rounds, 1, 1e9)
        number("policy.request_prior_tokens", self.request_prior_tokens, 1e-3, 1e6)


class Budget(Policy):
    """See the module."""

    watches = "rounds"
    trims = True

    def __init__(self, num_spec_tokens: int, settings: BudgetSettings, curves: Curves | None) -> None:
        super().__init__(num_spec_tokens)
        k = num_spec_tokens
        self._most = settings.budget_tokens
        self._tables = None if curves is None else cost_tables(curves, k, settings.profile_context_tokens)
        self._fade = math.exp(-1.0 / settings.memory_steps)
        self._request_fade = math.exp(-1.0 / settings.request_memory_rounds)
        self._prior = settings.request_prior_tokens
        self._tried = np.zeros(k)
        """By position: drafts that were verified with all before them accepted, fading."""
        self._hits = np.zeros(k)
        """By position: those of them that were accepted."""
        self._accepts = np.ones(k)
        """[k]: estimated acceptance by position, given that all before were accepted."""
        self._due = np.arange(k + 1, dtype=np.float64)
        """[k + 1]: accepted drafts expected of everybody after so many were looked at."""
        self._looked = np.zeros((2, k + 1), dtype=np.int64)
        self._records = np.zeros((64, 2))
        """[requests, 2]: accepted drafts of a request, fading, and what everybody would have had in its place."""
        self._scores, self._slots = _room(64 * k)
        from specsim.policies import budget_kernels  # where it is used, since what it needs takes long to load

        self._kernels = budget_kernels

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return self.num_spec_tokens

    def trim(
        self, requests: np.ndarray, drafts: np.ndarray, batch: int, prefill_tokens: int, prefill_rows: int
    ) -> np.ndarray:
        n, most = len(requests), self._most
        if n * self.num_spec_tokens > self._scores.shape[1]:
            self._scores, self._slots = _room(2 * n * self.num_spec_tokens)
        if most is None and self._tables is None:
            raise ScenarioError("policy budget needs a latency profile, or budget_tokens")
        verify, draft_s = _NOTHING, 0.0
        if self._tables is not None and most is None:
            draft, verify = self._tables
            draft_s = draft.item(batch)
        chosen = self._kernels.choose(
            requests, drafts, self._records, self._accepts, self._prior, -1 if most is None else most,
            n + prefill_rows, verify, n + prefill_tokens, draft_s, self._scores, self._slots,
        )  # fmt: skip
        if chosen < 0:
            self._make_room(requests)
            return self.trim(requests, drafts, batch, prefill_tokens, prefill_rows)
        return self._slots[0, :n]

    def ahead(self, most_requests: int) -> Ahead:
        return Ahead.constant(self.num_spec_tokens, most_requests)

    def trimmer(self, requests: int, most_requests: int) -> tuple[np.ndarray, ...] | None:
        """What a compiled loop needs to trim steps of up to `most_requests` of so many requests, and to learn from
        them, as `trim` and `observe` do; None where it has nothing to trim by."""
        if self._tables is None:
            return None
        draft_s, verify_s = self._tables
        if most_requests * self.num_spec_tokens > self._scores.shape[1]:
            self._scores, self._slots = _room(most_requests * self.num_spec_tokens)
        if requests > len(self._records):
            self._records = np.zeros((requests, 2))
        most = -1 if self._most is None else self._most
        numbers = np.array([most, self._prior, self._request_fade, self._fade], dtype=np.float64)
        return (
            numbers, draft_s, verify_s, self._scores, self._slots, self._records, self._accepts, self._due,
            self._tried, self._hits, self._looked,
        )  # fmt: skip

    def observe(self, seen: Observed) -> None:
        if not seen.rounds:
            return
        learnt = self._kernels.learn(
            seen.requests, seen.drafts, seen.emitted, self._records, self._request_fade, self._fade, self._accepts,
            self._due, self._tried, self._hits, self._looked,
        )  # fmt: skip
        if not learnt:
            self._make_room(seen.requests)
            self.observe(seen)

    def _make_room(self, requests: np.ndarray) -> None:
        more = 2 * (int(requests.max()) + 1) - len(self._records)
        self._records = np.concatenate((self._records, np.zeros((more, 2))))


def _room(slots: int) -> tuple[np.ndarray, np.ndarray]:
    """What `budget_kernels.choose` works in."""
    return np.zeros((2, slots)), np.zeros((3, slots + 2), dtype=np.int64)


def cost_tables(curves: Curves, num_spec_tokens: int, context_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(seconds of drafting by requests, seconds of verifying by tokens), from 0 to what fits in a step.

    Steps of the verify table are as wide as padding to captured sizes; beyond the largest, and where nothing is
    captured, it is straight between profiled sizes. Costs never fall with size, as in vLLM.
    """
    captured, most = [size for size in curves.captured_tokens if size <= curves.max_tokens], curves.max_tokens
    limit = captured[-1] if captured else 0
    beyond, size = set(), limit or 1 + num_spec_tokens
    beyond.add(min(size + size // 2, most))
    while size < most:
        beyond.add(min(size, most))
        size *= 2
    sizes = sorted({*captured, *(size for size in beyond if size > limit), most})
    seconds = [curves.verify_s(size, num_spec_tokens, context_tokens) for size in sizes]
    tokens = np.arange(most + 1)
    verify = _padded(tokens, sizes, seconds, limit)
    counts = sorted({*(1 << n for n in range(curves.max_requests.bit_length())), curves.max_requests})
    drafting = [curves.draft_s(count, num_spec_tokens, context_tokens) for count in counts]
    draft = np.interp(np.arange(curves.max_requests + 1), counts, np.maximum.accumulate(drafting))
    return draft, verify


def _padded(values: np.ndarray, sizes: list[int], seconds: list[float], limit: int) -> np.ndarray:
    """A curve read off at `values`: the next size up to `limit`, straight lines between larger ones."""
    xs, ys = np.asarray(sizes), np.maximum.accumulate(seconds)
    found = ys[np.minimum(np.searchsorted(xs, values), len(xs) - 1)]
    above = xs > limit
    if above.any():
        smooth = values > limit
        found[smooth] = np.interp(values[smooth], xs[above], ys[above])
    return found


def _make(spec: PolicySpec, view: EngineView) -> Policy:
    return Budget(spec.num_spec_tokens, spec.settings, view.curves)


KIND = PolicyKind(
    name="budget",
    summary="drafts `num_spec_tokens` for everybody and verifies those most likely to survive, so many that accepted "
    "tokens per second are most, as vLLM's `enable_adaptive_verification`; k differs between requests of a step",
    make=_make,
    label=lambda spec: f"budget<={spec.num_spec_tokens}",
    spelling="budget:K",
    example="budget:5",
    settings=BudgetSettings,
    chains_only=True,
    engines=("vllm",),
    vllm=lambda spec, max_num_seqs: {"enable_adaptive_verification": True},
    vllm_remarks=(
        "enable_adaptive_verification needs vLLM's V2 runner and an attention backend that verifies different lengths "
        "in one graph; 0.33.0 takes it for DSpark only, later releases for every drafter that is a model, and suffix.",
        "Set VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN near your mean context: its default of 8192 tokens makes "
        "verification look dear where contexts are shorter.",
    ),
    rank=4,
)
