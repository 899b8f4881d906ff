"""How many tokens to draft for the next round, from what an engine can see: requests in the step and cached tokens.

No policy sees an output length or the coming acceptance. To add one: a class with `num_spec_tokens` and `next_k`, and a
line in `make_policy`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from specsim.config import PolicySpec
from specsim.errors import ScenarioError

__all__ = ["Goodput", "Policy", "Schedule", "Static", "make_policy"]

StepSeconds = Callable[[int, float, int], float]
"""(requests, context tokens of each, num_spec_tokens) -> seconds of one decode step."""


class Policy(Protocol):
    """What a replica asks once a step."""

    num_spec_tokens: int
    """Largest k that it may choose."""
    constant: bool
    """Whether it always chooses `num_spec_tokens`."""

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        """Drafts per request for the next round.

        Args:
            batch: requests scheduled in this step, prefills included.
            kv_tokens: cached tokens of the decoding ones, summed.
            decode_requests: how many of them decode.
        """
        ...


class Static:
    """Always the same k; k = 0 is speculation loaded but idle."""

    constant = True

    def __init__(self, num_spec_tokens: int) -> None:
        self.num_spec_tokens = num_spec_tokens

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return self.num_spec_tokens


class Schedule:
    """k by the number of requests in the step, as vLLM's num_speculative_tokens_per_batch_size."""

    constant = False

    def __init__(self, table: Sequence[tuple[int, int, int]], num_spec_tokens: int) -> None:
        self.num_spec_tokens = num_spec_tokens
        # Gaps and the tail carry the previous k, so that where a range starts is all that counts.
        self._first = [first for first, _, _ in table]
        self._k = [table[0][2]] + [k for _, _, k in table]

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        return self._k[bisect_right(self._first, batch)]


class Goodput:
    """The k with most expected tokens per second, from the cost model and the expected acceptance.

    Choices are remembered by batch and by context in steps of one eighth of an octave.
    """

    constant = False

    def __init__(self, num_spec_tokens: int, expected_length: Callable[[int], float], step_s: StepSeconds) -> None:
        self.num_spec_tokens = num_spec_tokens
        self._lengths = [1.0] + [expected_length(k) for k in range(1, num_spec_tokens + 1)]
        self._step_s = step_s
        self._choice: dict[tuple[int, int], int] = {}

    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        context = kv_tokens // decode_requests if decode_requests else 0
        octave = max(0, context.bit_length() - 4)
        bucket = (context >> octave) << octave
        key = (batch, bucket)
        k = self._choice.get(key)
        if k is None:
            middle = bucket + (1 << octave) / 2
            rates = [length / self._step_s(batch, middle, k) for k, length in enumerate(self._lengths)]
            k = self._choice[key] = max(range(len(rates)), key=rates.__getitem__)
        return k


def make_policy(
    spec: PolicySpec, *, expected_length: Callable[[int], float] | None = None, step_s: StepSeconds | None = None
) -> Policy:
    """The policy that a specification describes.

    Raises:
        ScenarioError: when `goodput` is asked for without acceptance and costs to choose by.
    """
    if spec.kind == "off":
        return Static(0)
    if spec.kind == "static":
        return Static(spec.num_spec_tokens)
    if spec.kind == "schedule":
        return Schedule(spec.table, spec.num_spec_tokens)
    if spec.kind == "off_above":
        k, limit = spec.num_spec_tokens, spec.batch_limit
        table = ((1, limit, k), (limit + 1, limit + 1, 0)) if limit else ((1, 1, 0),)
        return Schedule(table, k)
    if expected_length is None or step_s is None:
        raise ScenarioError("policy goodput needs an acceptance model and a latency profile")
    return Goodput(spec.num_spec_tokens, expected_length, step_s)
