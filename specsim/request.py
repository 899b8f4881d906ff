"""A request and the moves it may make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from specsim.errors import InvariantError

__all__ = ["MOVES", "Request", "State"]


class State(Enum):
    """Where a request is; `MOVES` says what may follow."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    REJECTED = "rejected"


MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.REJECTED}),
    State.RUNNING: frozenset({State.PREEMPTED, State.FINISHED}),
    State.PREEMPTED: frozenset({State.RUNNING}),
    State.FINISHED: frozenset(),
    State.REJECTED: frozenset(),
}


@dataclass(slots=True)
class Request:
    """What an engine knows of a request while it runs. Its output length is known to whoever emits tokens, not here."""

    request_id: int
    prompt_tokens: int
    hashes: tuple[int, ...] = ()
    """Prefix hashes of full prompt blocks, in prompt order."""
    asked_output_tokens: int = 0
    """max_tokens of the request."""
    state: State = State.WAITING
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    num_emitted_tokens: int = 0
    num_draft_tokens: int = 0
    """Drafts waiting to be verified."""
    is_decoding: bool = False
    """Only the last emitted token (and drafts) are left to compute."""
    has_cache: bool = False
    """Its prompt was computed elsewhere and is here, in blocks that it holds, but it does not run yet."""
    padding_tokens: int = 0
    """Tokens in front of its prompt that make it as long as the longest of its batch."""

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and emitted."""
        return self.prompt_tokens + self.num_emitted_tokens

    def move(self, to: State) -> None:
        """Change state, or raise InvariantError when the table forbids it."""
        if to not in MOVES[self.state]:
            raise InvariantError(f"request {self.request_id}: {self.state.value} -> {to.value} is not a move")
        self.state = to
