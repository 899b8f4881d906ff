"""What every replica offers to the run around it, and the figures that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specsim.latency import StepWork

__all__ = ["Replica", "StepView"]


@dataclass(frozen=True, slots=True)
class StepView:
    """What an observer sees of the step that has begun."""

    work: StepWork
    """The object itself, which the next step changes."""
    running: int
    """Requests admitted, served in this step or not."""
    waiting: int
    """Requests queued, preempted ones included."""
    used_blocks: int
    rounds: int
    """Requests that decode in it. `work` may have more rows: finished requests, padding, placeholders."""
    draft_tokens: int
    """Their drafts; likewise."""


class Replica(Protocol):
    """One engine. The run calls `submit` when a request is routed here, `begin_step`, waits, then `end_step`."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens of requests that have not finished; what a router can see of the load."""
        ...

    def submit(self, request: int, now_s: float) -> bool:
        """Queue a request; False when it can never fit, which refuses it."""
        ...

    def begin_step(self, now_s: float, until_s: float = 0.0) -> float | None:
        """Decide a step and return its seconds; None when there is nothing to do.

        `until_s`: nothing comes from outside before. A replica may take the steps that begin until then as one, where
        nothing happens in between that anybody else could see.
        """
        ...

    def end_step(self, now_s: float) -> Sequence[int]:
        """Apply the step that began; the requests that finished with it."""
        ...

    def view(self) -> StepView:
        """The step that has begun, for observers."""
        ...
