"""What a policy sees of an engine, and what it is asked once a step.

Models: the seam between an engine and a rule that chooses how much to draft. Before a step the engine asks with what it
has scheduled; after it, a policy that watches is told what was drafted and accepted.
Leaves out: output lengths and coming acceptance, which no engine knows and no policy can reach from here.
Numbers: none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np

__all__ = ["Ahead", "Curves", "EngineView", "Observed", "Policy", "StepSeconds", "Watches"]

StepSeconds = Callable[[int, float, int], float]
"""(requests, context tokens of each, num_spec_tokens) -> seconds of one decode step."""

Watches = Literal["nothing", "totals", "completed", "rounds"]
"""What a policy is told after a step: nothing; the sums; and the requests that completed; and each round."""


def _no_rounds() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


class Curves(Protocol):
    """What an engine measures of its own passes when it starts."""

    @property
    def captured_tokens(self) -> Sequence[int]:
        """Token counts with a captured graph, rising; a step pads to the next. Empty: nothing is padded."""
        ...

    @property
    def max_requests(self) -> int:
        """Most requests in a step."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens in a step."""
        ...

    def draft_s(self, requests: int, num_spec_tokens: int, context_tokens: int) -> float:
        """Seconds of the drafter's passes for one round of so many requests."""
        ...

    def verify_s(self, tokens: int, num_spec_tokens: int, context_tokens: int) -> float:
        """Seconds of a target pass over so many tokens, 1 + `num_spec_tokens` of each request; host time left out."""
        ...


@dataclass(frozen=True, slots=True)
class EngineView:
    """What an engine knows before its first request: costs that it has profiled, acceptance that it was told."""

    expected_length: Callable[[int], float] | None = None
    """num_spec_tokens -> expected tokens a round, bonus included; None: nothing is known."""
    step_s: StepSeconds | None = None
    """Decode steps with the machinery loaded; None: not profiled."""
    curves: Curves | None = None
    """What drafting and verifying cost apart; None: not profiled."""


@dataclass(slots=True)
class Observed:
    """What one step verified and accepted. An engine hands out one object again and again."""

    batch: int = 0
    """Requests in the step, prefills included."""
    rounds: int = 0
    """Decoding requests in it, with drafts or without."""
    draft_rounds: int = 0
    """Those of them that had drafts."""
    drafted: int = 0
    """Drafts verified, summed."""
    accepted: int = 0
    """Drafts that became output, summed: what an engine throws away behind the end of an output does not count."""
    completed: Sequence[tuple[int, int]] = ()
    """(tokens, iterations that emitted them) of each request that completed; only for who watches them."""
    requests: np.ndarray = field(default_factory=_no_rounds)
    """int64 [rounds]: who was verified, in order of admission; this and what follows only for who watches rounds."""
    drafts: np.ndarray = field(default_factory=_no_rounds)
    """int64 [rounds]: drafts verified for each."""
    emitted: np.ndarray = field(default_factory=_no_rounds)
    """int64 [rounds]: tokens that each round emitted."""


def _nobody() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Ahead:
    """What a policy will answer, as arrays that a compiled loop reads."""

    ks: np.ndarray
    """int8 [contexts, requests + 1]: `next_k` by cached tokens of a decoding request, in the mean and rounded down, and
    by requests scheduled; negative: it has to be asked, and its answer is written here."""
    contexts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """int64, rising from 0: the mean contexts from which on a row holds."""
    groups: np.ndarray = field(default_factory=_nobody)
    """int64 [requests + 1]: of which group a step is, by its rounds; empty where nothing is learnt."""
    left: np.ndarray = field(default_factory=_nobody)
    """int64 [groups]: steps of a group, those without rounds not counted, behind which the policy must have been told
    of them all. Whoever takes steps counts down."""

    @classmethod
    def constant(cls, num_spec_tokens: int, most_requests: int) -> Ahead:
        """The same k always."""
        return cls(np.full((1, most_requests + 1), num_spec_tokens, dtype=np.int8))

    @classmethod
    def until_told(cls, num_spec_tokens: int, most_requests: int, steps: int) -> Ahead:
        """The same k for so many steps."""
        ahead = cls.constant(num_spec_tokens, most_requests)
        ahead.groups, ahead.left = np.zeros(most_requests + 1, dtype=np.int64), np.array([steps], dtype=np.int64)
        return ahead


class Policy(ABC):
    """A rule for one replica; what it remembers is that replica's own.

    A subclass says how many drafts to propose. One that learns sets `watches` and overrides `observe`. One that
    verifies fewer drafts than were proposed sets `trims` and overrides `trim`.
    """

    constant: ClassVar[bool] = False
    """Whether it always chooses `num_spec_tokens`."""
    watches: ClassVar[Watches] = "nothing"
    """What `observe` is told; `nothing` means that it is never called."""
    trims: ClassVar[bool] = False
    """Whether `trim` is asked before each step."""
    ALWAYS: ClassVar[int] = 1 << 62
    """What `steady_for` returns where it does not matter how often it is asked, or with how many cached tokens."""

    def __init__(self, num_spec_tokens: int) -> None:
        self.num_spec_tokens = num_spec_tokens
        """Largest k that it may choose."""

    @abstractmethod
    def next_k(self, batch: int, kv_tokens: int, decode_requests: int) -> int:
        """Drafts per request for the next round, 0..`num_spec_tokens`.

        Args:
            batch: requests scheduled in this step, prefills included.
            kv_tokens: cached tokens of the decoding ones, summed.
            decode_requests: how many of them decode.
        """

    def steady_for(self, batch: int, kv_tokens: int, decode_requests: int) -> tuple[int, int]:
        """How long `next_k` answers as it would now, for the same requests: (times that it is asked, this one counted,
        whatever steps without a completion `observe` is told of in between; cached tokens that it is asked below).

        An engine may take so many steps at once, and tell `observe` of them afterwards.
        """
        return 1, 0

    def ahead(self, most_requests: int) -> Ahead | None:
        """What it will answer in steps of up to so many requests, until it has been told more; None: it cannot say.

        An engine may take so many steps at once, up to one in which a request completes if the policy watches that, and
        tell `observe` of them afterwards. It asks again whenever it has told something. The arrays are the policy's.
        """
        return None

    def observe(self, seen: Observed) -> None:
        """Learn from the step that was just carried out; who watches nothing is not asked."""
        raise NotImplementedError(f"{type(self).__name__} watches {self.watches} but has no observe")

    def trim(
        self, requests: np.ndarray, drafts: np.ndarray, batch: int, prefill_tokens: int, prefill_rows: int
    ) -> np.ndarray:
        """Drafts to verify in this step, of those that are scheduled; not asked where there are none.

        Args:
            requests: int64 [decoding requests], in order of admission.
            drafts: int64, drafts scheduled for each; not to be changed.
            batch: requests scheduled in this step, prefills included.
            prefill_tokens: tokens in the same step of requests that do not decode yet: prompts, and the last token of
                those that came with their cache.
            prefill_rows: those of them that emit a token with it.

        Returns:
            int64 of the same length, each 0..drafts.
        """
        raise NotImplementedError(f"{type(self).__name__} trims but has no trim")
