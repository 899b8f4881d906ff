"""What a reference run leaves: every step, every round, and the same result as a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field

from specsim.latency import StepWork
from specsim.records import RunResult

__all__ = ["RoundRecord", "Served", "StepRecord"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: what was decided, and how long each part of it took. Times are in seconds from the start of the run."""

    began_s: float
    """The moment at which the step before it was booked, or the arrival that was waited for."""
    ended_s: float
    """Its tokens are out."""
    work: StepWork
    """A copy: requests, tokens, drafts and cached tokens that it computed, and the k chosen for the next round."""
    scheduled: tuple[tuple[int, int, int, int], ...]
    """(request, tokens computed, drafts among them, tokens in its cache before), in order; of a tree levels count."""
    preempted: tuple[int, ...]
    waiting: tuple[int, ...]
    """Requests in the queue once the step was decided, in order."""
    running: tuple[int, ...]
    """Requests admitted, in order."""
    used_blocks: int
    finished: tuple[int, ...]
    emitted_tokens: int
    schedule_s: float
    forward_s: float
    sample_s: float
    draft_s: float
    after_s: float
    """From its end until it was booked: requests, policy, this record."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one request."""

    step: int
    request: int
    position: int
    """Output tokens before it."""
    drafted: int
    """Drafts verified; of a tree its levels."""
    emitted: int


@dataclass(slots=True)
class Served:
    """A run of the reference engine."""

    result: RunResult
    steps: list[StepRecord] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    """In order of steps; prompts that end emit a first token without a round."""
    proposals: dict[tuple[int, int], int] = field(default_factory=dict)
    """(request, output position) -> drafts (levels, of trees) that were made for a round there, verified or not;
    positions without any are left out."""
    reference_s: list[float] = field(default_factory=list)
    """Seconds of the reference point of a profile, timed now and then during the run; empty: it was not."""
